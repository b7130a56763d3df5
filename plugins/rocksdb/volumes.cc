// The volumes that this process has open: see volumes.h.
#include "volumes.h"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace adit_rocksdb {

namespace {

// What was handed out. Constructed when the library is loaded and destroyed at exit after the program's own
// statics, which may hold the last reference to a file system (db_bench's do).
class Registry {
 public:
  ~Registry() {
    for (auto& entry : volumes_) {
      if (auto volume = entry.second.lock()) adit_syncfs(volume->handle());
    }
  }

  std::shared_ptr<Volume> Open(const std::string& address, std::string* error);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Volume>> volumes_;
};

Registry registry;

// Two spellings of one path are one volume; mem:SIZE and what doesn't exist stay as they are.
std::string Canonical(const std::string& address) {
  char resolved[PATH_MAX];
  return realpath(address.c_str(), resolved) != nullptr ? std::string(resolved) : address;
}

// "64M" in bytes. 0, which means the default, for what isn't a size.
uint64_t ParseSize(const char* text) {
  char* end = nullptr;
  const uint64_t number = strtoull(text, &end, 10);
  switch (*end) {
    case 'k': case 'K': return number << 10;
    case 'm': case 'M': return number << 20;
    case 'g': case 'G': return number << 30;
    case '\0': return number;
    default: return 0;
  }
}

std::shared_ptr<Volume> Registry::Open(const std::string& address, std::string* error) {
  const std::string canonical = Canonical(address);
  std::lock_guard<std::mutex> guard(mutex_);
  auto& known = volumes_[canonical];
  if (auto volume = known.lock()) return volume;
  adit_open_options options = ADIT_OPEN_OPTIONS_INIT;
  if (const char* cache = getenv("ADIT_CACHE")) options.cache_bytes = ParseSize(cache);
  adit_volume* handle = nullptr;
  const int result = adit_open_volume(canonical.c_str(), &options, &handle);
  if (result < 0) {
    *error = adit_error_message();
    return nullptr;
  }
  auto volume = std::make_shared<Volume>(handle, canonical);
  known = volume;
  return volume;
}

}  // namespace

Volume::Volume(adit_volume* handle, std::string address)
    : handle_(handle), address_(std::move(address)) {
  adit_statfs statfs;
  if (adit_volume_statfs(handle_, &statfs) == 0) id_ = statfs.volume_id[0];
}

Volume::~Volume() {
  int result = adit_close_volume(handle_);
  // Files of a DB that was never closed keep the volume open, for ever; their data need not wait.
  if (result == -EBUSY) result = adit_syncfs(handle_);
  if (result < 0) {
    fprintf(stderr, "adit: closing %s: %s\n", address_.c_str(), adit_error_message());
  }
}

std::shared_ptr<Volume> OpenVolume(const std::string& address, std::string* error) {
  return registry.Open(address, error);
}

}  // namespace adit_rocksdb
