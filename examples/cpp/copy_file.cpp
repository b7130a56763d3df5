/* A file is copied with 128 requests in flight, by futures.
 *
 *   cargo build --release --package libadit
 *   g++ -std=c++17 -O2 examples/cpp/copy_file.cpp -Icrates/capi/include -Ltarget/release -ladit -Wl,-rpath,$PWD/target/release -o copy_file
 *   ./copy_file copy_file.adit
 */
#include "adit.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>

constexpr std::size_t DEPTH = 128;
constexpr std::size_t BLOCK_BYTES = 64 << 10;
constexpr std::size_t FILE_BYTES = 64 << 20;

/* Each of the 128 places has a block of memory, and the future of the request that uses it. The
 * memory comes first: it must outlive the futures. */
struct Place {
    std::vector<char> block = std::vector<char>(BLOCK_BYTES);
    off_t offset = 0;
    adit::FuturePointer request;
};

/* Returns the number of bytes copied. */
std::uint64_t copy(adit::ApiBase &api, int from, int to)
{
    std::vector<Place> places(DEPTH);
    std::uint64_t copied = 0;
    off_t next = 0;

    for (bool at_end = false; !at_end;) {
        /* A read for each place. Before that, its write of the last round must be done. */
        for (Place &place : places) {
            if (place.request)
                copied += place.request->get().value();
            place.request.reset(); /* back to the pool */
            place.offset = next;
            place.request =
                api.pread_async(from, place.block.data(), BLOCK_BYTES, place.offset).value();
            next += BLOCK_BYTES;
        }
        /* Each read becomes a write as soon as it is done; the others are in flight meanwhile. */
        for (Place &place : places) {
            const std::size_t len = place.request->get().value();
            at_end = at_end || len < BLOCK_BYTES;
            place.request.reset();
            if (len > 0)
                place.request = api.pwrite_async(to, place.block.data(), len, place.offset).value();
        }
    }
    for (Place &place : places) {
        if (place.request)
            copied += place.request->get().value();
    }
    return copied;
}

bool are_equal(adit::ApiBase &api, int one, int two)
{
    std::vector<char> a(1 << 20), b(1 << 20);
    for (;;) {
        const std::size_t len = api.read(one, a.data(), a.size()).value();
        if (len != api.read(two, b.data(), b.size()).value())
            return false;
        if (!std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(len), b.begin()))
            return false;
        if (len == 0)
            return true;
    }
}

int main(int argc, char **argv)
try {
    const char *address = argc > 1 ? argv[1] : "copy_file.adit";
    adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
    format.size_bytes = 256u << 20;
    format.flags = ADIT_MKFS_FORCE;
    adit::mkfs(address, format).value();

    adit::Volume volume = adit::Volume::open(address).value();
    {
        adit::AsyncApi api(volume); /* its pool has 128 futures */
        const int from = api.open("/from", O_RDWR | O_CREAT, 0644).value();
        const int to = api.open("/to", O_RDWR | O_CREAT, 0644).value();
        std::vector<char> content(FILE_BYTES + 1000);
        for (char &byte : content)
            byte = static_cast<char>(std::rand());
        api.pwrite(from, content.data(), content.size(), 0).value();

        const auto begun = std::chrono::steady_clock::now();
        const std::uint64_t copied = copy(api, from, to);
        api.fdatasync(to).value();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
        std::printf("%llu bytes copied at depth %zu, %.0f MB/s\n",
                    static_cast<unsigned long long>(copied), DEPTH,
                    static_cast<double>(copied) / 1e6 / seconds.count());

        if (copied != content.size() || !are_equal(api, from, to)) {
            std::fprintf(stderr, "the copy differs\n");
            return 1;
        }
    }
    volume.close().value();
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what()); /* Adit's text about what failed */
    return 1;
}
