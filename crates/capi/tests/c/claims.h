/*
 * What the C tests are made of: claims that are counted and end the program when they do not hold.
 * With _exit: the program may be a forked child.
 */
#ifndef ADIT_TEST_CLAIMS_H
#define ADIT_TEST_CLAIMS_H

#include "adit.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_int claims;

/* Is the volume in a server, where no mkfs is done and several may have it open? */
static inline int is_served(const char *address)
{
    return strncmp(address, "unix:", 5) == 0;
}

#define HOLDS(condition)                                                                  \
    do {                                                                                  \
        ++claims;                                                                         \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: does not hold: %s (last error: %s)\n", __FILE__, __LINE__, \
                    #condition, adit_error_message());                                    \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

#define IS(call, expected)                                                                \
    do {                                                                                  \
        const long long got_ = (call);                                                    \
        ++claims;                                                                         \
        if (got_ != (long long)(expected)) {                                              \
            fprintf(stderr, "%s:%d: %s is %lld, not %s (last error: %s)\n", __FILE__, __LINE__, \
                    #call, got_, #expected, adit_error_message());                        \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

#endif
