/* Where the programs under test lie. */
#ifndef TESTS_SUPPORT_BUILD_FOLDER_H
#define TESTS_SUPPORT_BUILD_FOLDER_H

/* Lets base/spawn.h find agentd's own programs in the build folder that is tested
 * (AGENTD_BUILD, else "build"), also after a change of the working folder. 0, or -1 when there
 * is none. */
int build_folder_use(void);

#endif
