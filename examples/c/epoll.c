/* An event loop: epoll waits for the network, timers ... and for operations on a volume. Each
 * write's callback submits the next one, so that 8 are always in flight.
 *
 *   cargo build --release --package libadit
 *   cc -std=c11 examples/c/epoll.c -Icrates/capi/include -Ltarget/release -ladit -Wl,-rpath,$PWD/target/release -o epoll
 *   ./epoll
 */
#define _GNU_SOURCE
#include "adit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define BLOCK_BYTES 4096u
#define BLOCKS 1000u
#define IN_FLIGHT 8

static adit_queue *queue;
static adit_file *file;
static unsigned next_block;

struct place {
    char block[BLOCK_BYTES]; /* belongs to the operation in flight */
};

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, adit_error_message());
    exit(1);
}

/* A callback: runs in this thread, inside adit_queue_run. */
static void written(void *user_data, int64_t result);

static void write_next(struct place *place)
{
    adit_request request;
    if (next_block == BLOCKS)
        return;
    memset(place->block, 'a' + (int)(next_block % 26), BLOCK_BYTES);
    memset(&request, 0, sizeof(request));
    request.operation = ADIT_OP_WRITE;
    request.file = file;
    request.data = place->block;
    request.len = BLOCK_BYTES;
    request.offset = (uint64_t)next_block++ * BLOCK_BYTES;
    request.done = written;
    request.user_data = place;
    if (adit_queue_submit(queue, &request, 1) != 1)
        fail("submit");
}

static void written(void *user_data, int64_t result)
{
    if (result < 0) {
        fprintf(stderr, "write: %s\n", strerror((int)-result));
        exit(1);
    }
    write_next(user_data);
}

int main(void)
{
    static struct place places[IN_FLIGHT];
    struct epoll_event event = { .events = EPOLLIN };
    adit_volume *volume;
    int epoll, ready;

    if (adit_open_volume("mem:64M", NULL, &volume) < 0)
        fail("open the volume");
    if (adit_open(volume, "/blocks", ADIT_O_RDWR | ADIT_O_CREAT | ADIT_O_DIRECT, 0644, &file) < 0)
        fail("open the file");
    if (adit_queue_create(volume, NULL, &queue) < 0)
        fail("make the queue");

    epoll = epoll_create1(EPOLL_CLOEXEC);
    ready = adit_queue_eventfd(queue);
    if (epoll < 0 || ready < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, ready, &event) < 0)
        fail("epoll");

    for (int i = 0; i < IN_FLIGHT; ++i)
        write_next(&places[i]);
    while (adit_queue_pending(queue) > 0) {
        /* Sockets would be here, too. */
        if (epoll_wait(epoll, &event, 1, -1) == 1 && adit_queue_run(queue, 0, 64, 0) < 0)
            fail("run");
    }
    printf("%u blocks are written\n", next_block);

    close(epoll);
    if (adit_queue_destroy(queue) < 0 || adit_close(file) < 0 || adit_close_volume(volume) < 0)
        fail("close");
    return 0;
}
