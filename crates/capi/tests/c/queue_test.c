/*
 * Completion queues: any of many operations, chains of callbacks, epoll, several threads, wrong
 * arguments, the end with operations in flight, fork; waits for any of several handles.
 *
 *   queue_test ADDRESS     formats a volume there (unless mem:... or unix:...); prints "N claims hold"
 *
 * Compiled as C11 by tests/c_api.rs, also with AddressSanitizer.
 */
#define _GNU_SOURCE
#include "adit.h"
#include "claims.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u
#define MANY 10000u

static adit_volume *volume;
static adit_file *file;

static adit_request request_of(uint32_t operation, void *data, size_t len, uint64_t offset,
                               void *user_data)
{
    adit_request request;
    memset(&request, 0, sizeof(request));
    request.operation = operation;
    request.file = file;
    request.data = data;
    request.len = len;
    request.offset = offset;
    request.user_data = user_data;
    return request;
}

static adit_queue *new_queue(void)
{
    adit_queue *queue = NULL;
    IS(adit_queue_create(volume, NULL, &queue), 0);
    return queue;
}

static void each_operation_completes_once(void)
{
    static char data[64][PAGE];
    char counts[64] = { 0 };
    adit_completion completions[64];
    adit_queue *queue = new_queue();
    int taken = 0;
    for (int i = 0; i < 64; ++i) {
        adit_request request;
        memset(data[i], 'a' + i % 26, PAGE);
        request = request_of(ADIT_OP_WRITE, data[i], PAGE, (uint64_t)i * PAGE, &counts[i]);
        IS(adit_queue_submit(queue, &request, 1), 1);
    }
    IS(adit_queue_pending(queue), 64);
    while (taken < 64) {
        const int64_t got = adit_queue_wait(queue, completions, 1, 7, -1);
        HOLDS(got >= 1 && got <= 7);
        for (int i = 0; i < got; ++i) {
            IS(completions[i].result, PAGE);
            ++*(char *)completions[i].user_data;
        }
        taken += (int)got;
    }
    for (int i = 0; i < 64; ++i)
        IS(counts[i], 1);
    IS(adit_queue_pending(queue), 0);
    IS(adit_queue_wait(queue, completions, 0, 64, -1), 0);

    /* Every kind of operation, in one submission. */
    {
        char got[PAGE], appended[3] = "end";
        adit_request requests[5] = {
            request_of(ADIT_OP_READ, got, PAGE, 25 * PAGE, NULL),
            request_of(ADIT_OP_WRITE, data[0], PAGE, 0, NULL),
            request_of(ADIT_OP_APPEND, appended, 3, 0, NULL),
            request_of(ADIT_OP_FSYNC, NULL, 0, 0, NULL),
            request_of(ADIT_OP_FDATASYNC, NULL, 0, 0, NULL),
        };
        const int64_t results[5] = { PAGE, PAGE, 64 * PAGE, 0, 0 };
        for (int i = 0; i < 5; ++i)
            requests[i].user_data = &requests[i];
        IS(adit_queue_submit(queue, requests, 5), 5);
        IS(adit_queue_wait(queue, completions, 5, 5, -1), 5);
        for (int i = 0; i < 5; ++i) {
            const size_t at = (size_t)((adit_request *)completions[i].user_data - requests);
            IS(completions[i].result, results[at]);
        }
        HOLDS(got[0] == 'z' && got[PAGE - 1] == 'z');
    }
    IS(adit_queue_destroy(queue), 0);
}

/* -------------------------------------------------------------------------------- time limits */

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void a_time_limit_ends_a_wait_with_what_there_is(void)
{
    adit_completion completions[4];
    adit_queue *queue = new_queue();
    int64_t begun = now_ns();
    IS(adit_queue_wait(queue, completions, 1, 4, 20000000), 0);
    HOLDS(now_ns() - begun >= 20000000);
    IS(adit_queue_post(queue, NULL, &queue, 7), 0);
    begun = now_ns();
    IS(adit_queue_wait(queue, completions, 2, 4, 20000000), 1);
    HOLDS(now_ns() - begun >= 20000000);
    HOLDS(completions[0].user_data == &queue && completions[0].result == 7);
    IS(adit_queue_wait(queue, completions, 2, 4, 0), 0);
    IS(adit_queue_run(queue, 1, 1, 1000000), 0);
    /* Long limits that are not reached leave no timers behind; they would take memory. */
    for (int i = 0; i < 1000; ++i) {
        adit_request request = request_of(ADIT_OP_FDATASYNC, NULL, 0, 0, NULL);
        IS(adit_queue_submit(queue, &request, 1), 1);
        IS(adit_queue_wait(queue, completions, 1, 1, INT64_MAX), 1);
    }
    IS(adit_queue_destroy(queue), 0);
}

static void any_of_several_handles_is_waited_for(void)
{
    static char data[8][PAGE];
    adit_op *ops[9];
    uint8_t done[9];
    int left = 8;
    ops[8] = NULL;
    for (int i = 0; i < 8; ++i)
        IS(adit_pwrite_submit(file, data[i], PAGE, (uint64_t)i * PAGE, NULL, NULL, &ops[i]), 0);
    while (left > 0) {
        const int64_t count = adit_op_wait_any(ops, 9, done, -1);
        HOLDS(count >= 1 && count <= left && done[8] == 0);
        for (int i = 0; i < 8; ++i) {
            if (ops[i] == NULL || !done[i])
                continue;
            IS(adit_op_wait(ops[i]), PAGE);
            adit_op_release(ops[i]);
            ops[i] = NULL;
            --left;
        }
    }
    IS(adit_op_wait_any(ops, 9, done, 0), -EINVAL);
    IS(adit_op_wait_any(NULL, 0, NULL, 0), -EINVAL);
    IS(adit_fsync_submit(file, NULL, NULL, &ops[3]), 0);
    while (adit_op_wait_any(ops, 9, NULL, 1) == 0) {
    }
    IS(adit_op_wait(ops[3]), 0);
    IS(adit_op_wait_any(ops, 9, done, 0), 1);
    IS(done[3], 1);
    adit_op_release(ops[3]);
}

/* Operations of another volume are driven by its own thread; whoever waits is woken. */
static void operations_of_another_volume_complete(void)
{
    static char data[PAGE];
    adit_volume *other = NULL;
    adit_file *elsewhere = NULL;
    adit_completion completions[2];
    adit_queue *queue = new_queue();
    adit_request requests[2];
    adit_op *ops[2];
    IS(adit_open_volume("mem:64M", NULL, &other), 0);
    IS(adit_open(other, "/there", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &elsewhere), 0);
    for (int i = 0; i < 200; ++i) {
        requests[0] = request_of(ADIT_OP_WRITE, data, PAGE, 0, NULL);
        requests[0].file = elsewhere;
        requests[1] = request_of(ADIT_OP_FDATASYNC, NULL, 0, 0, NULL);
        requests[1].file = i % 2 == 0 ? elsewhere : file;
        IS(adit_queue_submit(queue, requests, 2), 2);
        IS(adit_queue_wait(queue, completions, 2, 2, -1), 2);
        IS(adit_append_submit(file, data, 8, NULL, NULL, &ops[0]), 0);
        IS(adit_fdatasync_submit(elsewhere, NULL, NULL, &ops[1]), 0);
        HOLDS(adit_op_wait_any(ops + i % 2, 1, NULL, -1) == 1);
        HOLDS(adit_op_wait_any(ops, 2, NULL, -1) >= 1);
        for (int j = 0; j < 2; ++j) {
            HOLDS(adit_op_wait(ops[j]) >= 0);
            adit_op_release(ops[j]);
        }
    }
    IS(adit_close(elsewhere), 0);
    IS(adit_close_volume(other), 0);
    IS(adit_queue_destroy(queue), 0);
}

/* ----------------------------------------------------------------------------------- callbacks */

struct chain {
    adit_queue *queue;
    pthread_t thread;
    char page[PAGE];
    unsigned left;
    int depth;
};

static void go_on(void *user_data, int64_t result)
{
    struct chain *chain = user_data;
    adit_request request;
    HOLDS(result == PAGE);
    HOLDS(pthread_equal(chain->thread, pthread_self()));
    IS(chain->depth++, 0); /* never inside itself */
    if (--chain->left > 0) {
        request = request_of(chain->left % 3 == 0 ? ADIT_OP_WRITE : ADIT_OP_READ, chain->page, PAGE,
                             (uint64_t)(chain->left % 64) * PAGE, chain);
        request.done = go_on;
        IS(adit_queue_submit(chain->queue, &request, 1), 1);
    }
    --chain->depth;
}

static void callbacks_submit_in_chains(void)
{
    static struct chain chains[8];
    adit_queue *queue = new_queue();
    int64_t ran = 0;
    for (int i = 0; i < 8; ++i) {
        adit_request request = request_of(ADIT_OP_READ, chains[i].page, PAGE, 0, &chains[i]);
        request.done = go_on;
        chains[i].queue = queue;
        chains[i].thread = pthread_self();
        chains[i].left = MANY / 8;
        IS(adit_queue_submit(queue, &request, 1), 1);
    }
    while (adit_queue_pending(queue) > 0) {
        const int64_t got = adit_queue_run(queue, 1, 100, -1);
        HOLDS(got >= 1 && got <= 100);
        ran += got;
    }
    IS(ran, MANY);
    IS(adit_queue_destroy(queue), 0);
}

static void never(void *user_data, int64_t result)
{
    (void)user_data;
    (void)result;
    HOLDS(0);
}

static void the_end_waits_and_calls_nothing(void)
{
    static char data[100][PAGE];
    for (int round = 0; round < 20; ++round) {
        adit_queue *queue = new_queue();
        for (int i = 0; i < 100; ++i) {
            adit_request request =
                request_of(i % 2 == 0 ? ADIT_OP_READ : ADIT_OP_WRITE, data[i], PAGE,
                           (uint64_t)i * PAGE, NULL);
            request.done = never;
            IS(adit_queue_submit(queue, &request, 1), 1);
        }
        IS(adit_close_volume(volume), -EBUSY);
        IS(adit_queue_destroy(queue), 0);
        memset(data, 'x', sizeof(data)); /* ours again */
    }
}

/* --------------------------------------------------------------------------------------- epoll */

/* Another thread may be about to make it so: waits for that, and hangs if it never is. */
static int becomes_readable(int descriptor, int readable)
{
    struct pollfd poll_one = { .fd = descriptor, .events = POLLIN };
    while (poll(&poll_one, 1, 0) != readable)
        sched_yield();
    return 1;
}

static void epoll_reports_completions(uint32_t triggering)
{
    static char data[32][PAGE];
    struct epoll_event event = { .events = EPOLLIN | triggering };
    adit_completion completions[32];
    adit_queue *queue = new_queue();
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    const int ready = adit_queue_eventfd(queue);
    unsigned submitted = 0, taken = 0;
    HOLDS(epoll >= 0 && ready >= 0 && adit_queue_eventfd(queue) == ready);
    HOLDS((fcntl(ready, F_GETFD) & FD_CLOEXEC) != 0);
    IS(epoll_ctl(epoll, EPOLL_CTL_ADD, ready, &event), 0);
    IS(epoll_wait(epoll, &event, 1, 0), 0);
    while (taken < 2000) {
        int64_t got;
        while (submitted < 2000 && submitted - taken < 32) {
            const unsigned at = submitted % 32;
            adit_request request =
                request_of(submitted % 5 == 0 ? ADIT_OP_WRITE : ADIT_OP_READ, data[at], PAGE,
                           (uint64_t)at * PAGE, NULL);
            IS(adit_queue_submit(queue, &request, 1), 1);
            ++submitted;
        }
        do { /* hangs if a completion is lost; a process that is stopped and continued gets EINTR */
            errno = 0;
        } while (epoll_wait(epoll, &event, 1, -1) < 0 && errno == EINTR);
        IS(errno, 0);
        do {
            got = adit_queue_wait(queue, completions, 0, 3, 0);
            HOLDS(got >= 0);
            taken += (unsigned)got;
        } while (got > 0 && triggering != 0);
    }
    IS(taken, 2000);
    IS(adit_queue_wait(queue, completions, 0, 3, 0), 0);
    HOLDS(becomes_readable(ready, 0));
    close(epoll);

    /* Level-triggered: readable until the last one is taken. */
    for (int i = 0; i < 3; ++i)
        IS(adit_queue_post(queue, NULL, NULL, i), 0);
    for (int i = 0; i < 3; ++i) {
        HOLDS(becomes_readable(ready, 1));
        IS(adit_queue_wait(queue, completions, 1, 1, -1), 1);
        IS(completions[0].result, i);
    }
    HOLDS(becomes_readable(ready, 0));

    /* A program that read it by mistake is told of the next completion nevertheless. */
    {
        uint64_t count = 0;
        IS(adit_queue_post(queue, NULL, NULL, 1), 0);
        HOLDS(becomes_readable(ready, 1));
        IS(read(ready, &count, sizeof(count)), sizeof(count));
        IS(adit_queue_wait(queue, completions, 1, 3, -1), 1);
        IS(adit_queue_post(queue, NULL, NULL, 1), 0);
        HOLDS(becomes_readable(ready, 1));
        IS(adit_queue_wait(queue, completions, 1, 3, -1), 1);
    }
    IS(adit_queue_destroy(queue), 0);
    IS(fcntl(ready, F_GETFD), -1);
}

/* ------------------------------------------------------------------------------------- threads */

#define THREADS 4
#define EACH 2000

static adit_queue *shared;
static atomic_int taken_by_all;
static atomic_int ended;

static void *take_until_told(void *unused)
{
    adit_completion completions[5];
    (void)unused;
    for (;;) {
        const int64_t got = adit_queue_wait(shared, completions, 1, 5, -1);
        HOLDS(got >= 1);
        for (int i = 0; i < got; ++i) {
            if (completions[i].user_data == &ended) {
                /* One end for each thread: give back what others are to get. */
                for (int j = i + 1; j < got; ++j) {
                    while (adit_queue_post(shared, NULL, completions[j].user_data,
                                           completions[j].result) == -EAGAIN)
                        sched_yield();
                }
                return NULL;
            }
            ++taken_by_all;
        }
    }
}

static void *submit_many(void *memory)
{
    char *data = memory;
    for (int i = 0; i < EACH; ++i) {
        adit_request request = request_of(i % 4 == 0 ? ADIT_OP_WRITE : ADIT_OP_READ,
                                          data + (size_t)(i % 16) * PAGE, 64,
                                          (uint64_t)(i % 64) * PAGE, NULL);
        while (adit_queue_submit(shared, &request, 1) == -EAGAIN)
            sched_yield();
    }
    return NULL;
}

static void many_threads_submit_to_and_wait_on_one_queue(void)
{
    static char memory[THREADS][EACH / 100 * PAGE];
    pthread_t takers[THREADS], submitters[THREADS];
    adit_queue_options options = ADIT_QUEUE_OPTIONS_INIT;
    options.entries_max = 16;
    IS(adit_queue_create(volume, &options, &shared), 0);
    for (int i = 0; i < THREADS; ++i)
        HOLDS(pthread_create(&takers[i], NULL, take_until_told, NULL) == 0);
    for (int i = 0; i < THREADS; ++i)
        HOLDS(pthread_create(&submitters[i], NULL, submit_many, memory[i]) == 0);
    for (int i = 0; i < THREADS; ++i)
        HOLDS(pthread_join(submitters[i], NULL) == 0);
    for (int i = 0; i < THREADS; ++i) {
        while (adit_queue_post(shared, NULL, &ended, 0) == -EAGAIN)
            sched_yield();
    }
    for (int i = 0; i < THREADS; ++i)
        HOLDS(pthread_join(takers[i], NULL) == 0);
    /* The ends may have overtaken operations in flight. */
    while (adit_queue_pending(shared) > 0) {
        adit_completion rest[16];
        const int64_t got = adit_queue_wait(shared, rest, 1, 16, -1);
        HOLDS(got >= 1);
        taken_by_all += (int)got;
    }
    IS(taken_by_all, THREADS * EACH);
    IS(adit_queue_destroy(shared), 0);
}

static void wrong_arguments_are_refused(void)
{
    char data[8];
    adit_queue *queue = NULL;
    adit_queue_options options = ADIT_QUEUE_OPTIONS_INIT;
    adit_completion completion;
    adit_request good = request_of(ADIT_OP_READ, data, 8, 0, NULL), bad;
    adit_request two[2];
    IS(adit_queue_create(NULL, NULL, &queue), -EINVAL);
    IS(adit_queue_create(volume, NULL, NULL), -EINVAL);
    options.flags = 1;
    IS(adit_queue_create(volume, &options, &queue), -EINVAL);
    options.flags = 0;
    options.entries_max = 2;
    IS(adit_queue_create(volume, &options, &queue), 0);
    IS(adit_queue_submit(NULL, &good, 1), -EINVAL);
    IS(adit_queue_submit(queue, NULL, 1), -EINVAL);
    IS(adit_queue_submit(queue, NULL, 0), 0);
    bad = good, bad.operation = 0;
    IS(adit_queue_submit(queue, &bad, 1), -EINVAL);
    bad = good, bad.operation = 99;
    IS(adit_queue_submit(queue, &bad, 1), -EINVAL);
    bad = good, bad.flags = 1;
    IS(adit_queue_submit(queue, &bad, 1), -EINVAL);
    bad = good, bad.reserved = 1;
    IS(adit_queue_submit(queue, &bad, 1), -EINVAL);
    bad = good, bad.file = NULL;
    IS(adit_queue_submit(queue, &bad, 1), -EINVAL);
    bad = good, bad.data = NULL;
    IS(adit_queue_submit(queue, &bad, 1), -EINVAL);
    IS(adit_queue_pending(queue), 0);
    two[0] = good, two[1] = bad;
    IS(adit_queue_submit(queue, two, 2), 1);
    IS(adit_queue_submit(queue, &good, 1), 1);
    IS(adit_queue_submit(queue, &good, 1), -EAGAIN);
    IS(adit_queue_post(queue, NULL, NULL, 0), -EAGAIN);
    IS(adit_queue_wait(queue, &completion, 1, 0, 0), -EINVAL);
    IS(adit_queue_wait(queue, &completion, 0, 0, 0), -EINVAL);
    IS(adit_queue_wait(queue, NULL, 0, 1, 0), -EINVAL);
    IS(adit_queue_wait(NULL, &completion, 0, 1, 0), -EINVAL);
    IS(adit_queue_run(NULL, 0, 1, 0), -EINVAL);
    IS(adit_queue_run(queue, 2, 1, 0), -EINVAL);
    IS(adit_queue_run(queue, 2, 2, -1), 2);
    IS(adit_queue_eventfd(NULL), -EINVAL);
    IS(adit_queue_pending(NULL), -EINVAL);
    IS(adit_queue_destroy(queue), 0);
    IS(adit_queue_destroy(NULL), -EINVAL);
}

static void a_child_can_only_let_go(void)
{
    char data[8];
    adit_queue *queue = new_queue();
    adit_completion completion;
    adit_request request = request_of(ADIT_OP_READ, data, 8, 0, NULL);
    int status = -1;
    pid_t child;
    HOLDS(adit_queue_eventfd(queue) >= 0);
    IS(adit_queue_submit(queue, &request, 1), 1);
    fflush(NULL);
    child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        alarm(580);
        IS(adit_queue_submit(queue, &request, 1), -EBADF);
        IS(adit_queue_wait(queue, &completion, 1, 1, -1), -EBADF);
        IS(adit_queue_run(queue, 1, 1, -1), -EBADF);
        IS(adit_queue_post(queue, NULL, NULL, 0), -EBADF);
        IS(adit_queue_eventfd(queue), -EBADF);
        IS(adit_queue_pending(queue), -EBADF);
        IS(adit_queue_destroy(queue), -EBADF);
        _exit(7);
    }
    HOLDS(waitpid(child, &status, 0) == child);
    HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    IS(adit_queue_wait(queue, &completion, 1, 1, -1), 1);
    IS(adit_queue_destroy(queue), 0);
}

static void all_of_it(unsigned flags)
{
    IS(adit_open(volume, "/file", ADIT_O_RDWR | ADIT_O_CREAT | ADIT_O_TRUNC | flags, 0644, &file),
       0);
    taken_by_all = 0;
    each_operation_completes_once();
    a_time_limit_ends_a_wait_with_what_there_is();
    any_of_several_handles_is_waited_for();
    operations_of_another_volume_complete();
    callbacks_submit_in_chains();
    the_end_waits_and_calls_nothing();
    epoll_reports_completions(0);
    epoll_reports_completions(EPOLLET);
    many_threads_submit_to_and_wait_on_one_queue();
    wrong_arguments_are_refused();
    IS(adit_close(file), 0);
}

int main(int argc, char **argv)
{
    const char *address = argc > 1 ? argv[1] : "mem:64M";
    alarm(argc > 2 ? (unsigned)atoi(argv[2]) : 580); /* no machine is so busy: it hangs */
    if (strncmp(address, "mem:", 4) != 0 && !is_served(address)) {
        adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
        format.size_bytes = 128u << 20;
        format.flags = ADIT_MKFS_FORCE;
        IS(adit_mkfs(address, &format), 0);
    }
    IS(adit_open_volume(address, NULL, &volume), 0);
    all_of_it(0);
    all_of_it(ADIT_O_DIRECT);
    if (argc <= 2) {
        IS(adit_open(volume, "/file", ADIT_O_RDWR, 0644, &file), 0);
        a_child_can_only_let_go();
        IS(adit_close(file), 0);
    }
    IS(adit_close_volume(volume), 0);
    printf("%d claims hold\n", claims);
    return 0;
}
