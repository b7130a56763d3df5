// One open volume: see volume.h.
#include "volume.h"

#include <pthread.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>

#include "status.h"

namespace adit_leveldb {

using leveldb::Status;

namespace {

// What is open, with its address. Never destroyed: the program's statics may own an Env for longer
// than ours live.
struct OpenVolumes {
  std::mutex mutex;
  std::map<adit_volume*, std::string> addresses;
};
OpenVolumes* open_volumes = new OpenVolumes;

// A forked child has none of its parent's volumes. Another thread of the parent may have held the
// mutex.
void Forget() { open_volumes = new OpenVolumes; }

void Complain(const char* doing, const std::string& address) {
  fprintf(stderr, "adit: error: %s %s: %s\n", doing, address.c_str(), adit_error_message());
}

// Constructed when the library is loaded, and destroyed at exit after the program's own statics.
const struct AtExit {
  AtExit() { pthread_atfork(nullptr, nullptr, Forget); }
  ~AtExit() {
    std::lock_guard<std::mutex> guard(open_volumes->mutex);
    for (const auto& [handle, address] : open_volumes->addresses) {
      if (adit_syncfs(handle) < 0) Complain("syncing at exit:", address);
    }
  }
} at_exit;

// LevelDB's own log is a file of a volume, so a thread inside of Adit can't write there.
void Print(void*, int level, const char* message) {
  fprintf(stderr, "adit: %s: %s\n", level == ADIT_LOG_ERROR ? "error" : "warning", message);
}

std::string Advice(int error, const std::string& address) {
  switch (error) {
    case ENOENT:
      return "make a volume with `adit mkfs " + address + " --size 4G`";
    case EBUSY:
      return "close it there first; in one process, let all databases of a volume share one Env";
    case EOWNERDEAD:
      return "choose with ADIT_TAKEOVER=adopt, leave or discard";
    case EACCES:
    case EPERM:
    case EROFS:
      return "give this user the right to read and write it";
    default:
      return "";
  }
}

}  // namespace

Status Volume::Open(const std::string& address, const adit::LevelDbEnvOptions& options,
                    std::unique_ptr<Volume>* result) {
  static std::once_flag messages;
  std::call_once(messages, [] { adit_set_log(Print, nullptr, ADIT_LOG_WARNING); });
  adit_open_options open_options = ADIT_OPEN_OPTIONS_INIT;
  const int set = adit_options_from_environment(&open_options);
  if (set < 0) return Failure(set, address);
  if (options.cache_bytes != 0) open_options.cache_bytes = options.cache_bytes;
  if (options.read_only) open_options.flags |= ADIT_VOLUME_READ_ONLY;
  // Held, so that a volume that is open at exit is in the map then.
  std::lock_guard<std::mutex> guard(open_volumes->mutex);
  adit_volume* handle = nullptr;
  const int opened = adit_open_volume(address.c_str(), &open_options, &handle);
  if (opened < 0) return Failure(opened, address, Advice(-opened, address));
  open_volumes->addresses[handle] = address;
  result->reset(new Volume(handle, address));
  return Status::OK();
}

Volume::~Volume() {
  std::lock_guard<std::mutex> guard(open_volumes->mutex);
  const int closed = adit_close_volume(handle_);
  if (closed < 0) Complain("closing", address_);
  if (closed == -EBUSY) {
    if (adit_syncfs(handle_) < 0) Complain("syncing", address_);
    return;
  }
  open_volumes->addresses.erase(handle_);
}

}  // namespace adit_leveldb
