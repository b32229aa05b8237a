/* The one include of every test: cmocka with what it needs in front of it, and paths. */
#ifndef TESTS_SUPPORT_TEST_H
#define TESTS_SUPPORT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Fails the test with the message of a struct error when rc is not OK. */
#define assert_ok(rc, e)                                                                       \
    do {                                                                                       \
        int rc_ = (int)(rc);                                                                   \
        if (rc_)                                                                               \
            fail_msg("code %d: %s", rc_, (e)->msg);                                            \
    } while (0)

/* Tests run from the top of the source tree; golden vectors are read from here and nowhere
 * else. */
#define GOLDEN "tests/golden/"

#endif
