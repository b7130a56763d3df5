/*
 * adit.hpp: the C++ interface of Adit, header-only over adit.h. A program includes this file and
 * links with libadit.
 *
 *   adit/result.hpp     Result<T>, errors as std::error_code and as exceptions
 *   adit/future.hpp     FutureBase, Future<T>, wait_any, FuturePool
 *   adit/file.hpp       File, Buffer: a file, blocking and asynchronous
 *   adit/queue.hpp      Queue: any of many operations, eventfd, callbacks
 *   adit/volume.hpp     Volume, Directory, Blob
 *   adit/api.hpp        ApiBase, SyncApi, AsyncApi: POSIX-like calls on descriptors
 *   adit/aio.hpp        adit::aio: calls like libaio's
 *   adit/coroutine.hpp  co_await on futures (C++20): Task<T>, Loop
 *
 * What adit.h says about durability, paths, threads, signals and fork holds here too; constants
 * (ADIT_O_RDWR ...), options and adit_stat are adit.h's own. In addition:
 *
 * Results    Every call that can fail returns a Result: test it, ask it for its std::error_code and
 *            text, or take value(), which throws adit::Error (a std::system_error). Nothing else
 *            throws, except std::bad_alloc. Compiled without exceptions, value() of an error prints
 *            the text and aborts.
 * Ownership  Volume, File, Directory, Blob, Buffer and futures are move-only, and close or release
 *            in their destructors. Destructors drop errors: call close() to see them. An object
 *            after close() or a move answers EINVAL.
 * Lifetime   A file, directory, blob or running future keeps its volume open. So the order of
 *            destruction is free; the last of them closes the volume. Volume::close() with others
 *            alive is EBUSY and has no effect.
 * Memory     A future's destructor waits for its operation. So memory passed to an operation is
 *            safe if it lives longer than the future: declare it before the future. Nothing cancels
 *            an operation.
 * Threads    A future belongs to one thread at a time; the other types are used as adit.h allows.
 *
 * Waiting    Waits with a timeout, for any of several operations, and in a Loop are the library's:
 *            the thread drives the volume, or sleeps until it is woken. Only what was submitted with
 *            `polling` spins.
 *
 * C++17 or later, g++ or clang++; works with -fno-exceptions and -fno-rtti.
 */
#ifndef ADIT_HPP
#define ADIT_HPP

#include "adit/aio.hpp"
#include "adit/api.hpp"
#include "adit/coroutine.hpp"
#include "adit/file.hpp"
#include "adit/future.hpp"
#include "adit/queue.hpp"
#include "adit/result.hpp"
#include "adit/volume.hpp"

#endif /* ADIT_HPP */
