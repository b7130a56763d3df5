/*
 * What the C++ tests are made of: claims that are counted and end the program when they do not
 * hold, and a limit on the time of the whole program.
 */
#ifndef ADIT_TEST_CLAIMS_HPP
#define ADIT_TEST_CLAIMS_HPP

#include <atomic>
#include <cstdio>
#include <string>
#include <unistd.h>

inline std::atomic<int> claims{0};

/* A test that hangs is ended by SIGALRM. */
inline void limit_time() { alarm(240); }

#define HOLDS(...)                                                                              \
    do {                                                                                        \
        ++claims;                                                                               \
        if (!(__VA_ARGS__)) {                                                                   \
            std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
            _exit(1);                                                                           \
        }                                                                                       \
    } while (0)

/* A Result that is ok. */
#define OK(...)                                                                              \
    do {                                                                                     \
        const auto &result_ = (__VA_ARGS__);                                                 \
        ++claims;                                                                            \
        if (!result_.ok()) {                                                                 \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #__VA_ARGS__,        \
                         result_.message().c_str());                                         \
            _exit(1);                                                                        \
        }                                                                                    \
    } while (0)

/* A Result with this errno, and a text. */
#define FAILS(number, ...)                                                                   \
    do {                                                                                     \
        const auto &result_ = (__VA_ARGS__);                                                 \
        ++claims;                                                                            \
        if (result_.ok() || result_.error_number() != (number) || result_.message().empty()) { \
            std::fprintf(stderr, "%s:%d: %s is not %s but %d (%s)\n", __FILE__, __LINE__,    \
                         #__VA_ARGS__, #number, result_.error_number(),                      \
                         result_.message().c_str());                                         \
            _exit(1);                                                                        \
        }                                                                                    \
    } while (0)

#endif
