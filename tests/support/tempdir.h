/* A folder of its own for a test, and its removal with everything inside.
 *
 *     char dir[TEMPDIR_BYTES];
 *     tempdir_make(dir);
 *     ...
 *     tempdir_remove(dir);
 */
#ifndef TESTS_SUPPORT_TEMPDIR_H
#define TESTS_SUPPORT_TEMPDIR_H

#define TEMPDIR_BYTES 64

/* In $TMPDIR or /tmp; fails the test when it cannot be made. */
void tempdir_make(char dir[TEMPDIR_BYTES]);
void tempdir_remove(const char *dir);

#endif
