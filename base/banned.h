/* Functions that nobody here may call. The Makefile includes this in front of every C file, and
 * a call becomes an error at compile time: an undeclared name that says what to take instead.
 */
#ifndef BASE_BANNED_H
#define BASE_BANNED_H

#ifndef __cplusplus

/* First the headers that declare them: they must not meet the macros. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#undef strcpy
#undef strcat
#undef strncpy
#undef sprintf
#undef strtok
#undef atoi
#undef gmtime
#undef localtime
#undef system
#undef popen

#define strcpy(dst, src) banned_strcpy_use_snprintf_or_memcpy
#define strcat(dst, src) banned_strcat_use_snprintf_or_buf_add_str
#define strncpy(dst, src, n) banned_strncpy_use_snprintf_or_memcpy
#define sprintf(...) banned_sprintf_use_snprintf_or_buf_printf
#define strtok(s, delim) banned_strtok_use_strcspn_or_strtok_r
#define atoi(s) banned_atoi_use_options_parse_int
#define gmtime(t) banned_gmtime_use_clock_text_or_gmtime_r
#define localtime(t) banned_localtime_use_localtime_r
#define system(command) banned_system_use_base_spawn
#define popen(command, mode) banned_popen_use_base_spawn

#endif
#endif
