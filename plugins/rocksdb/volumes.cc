// The volumes that this process has open: see volumes.h.
#include "volumes.h"

#include <pthread.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "messages.h"

namespace adit_rocksdb {

namespace {

// One open volume. `handle` outlives the Volume that owned it when files of a DB that was never
// closed keep it open.
struct Entry {
  adit_volume* handle = nullptr;
  const Volume* owner = nullptr;  // who closes it
  std::weak_ptr<Volume> volume;   // the owner, unless it is going
};

// What is open. Invariant: a handle is opened, closed and changes its owner under the mutex, so
// that whoever opens a volume finds it open, and shares or inherits it, or finds it closed; never
// on the way.
class Registry {
 public:
  std::shared_ptr<Volume> Open(const std::string& address, const adit_open_options* given,
                               std::string* error);
  int Close(const Volume* owner);
  void SyncAll();

 private:
  std::mutex mutex_;
  std::map<std::string, Entry> volumes_;
};

// Never destroyed: statics of others may hold the last reference to a volume for longer than ours
// live.
Registry* registry = new Registry;

// A forked child has none of its parent's volumes, and opens anew what it needs. Another thread of
// the parent may have held any of the mutexes.
void Forget() {
  registry = new Registry;
  messages = new Messages;
}

// Constructed when the library is loaded, and destroyed at exit after the program's own statics,
// which may hold the last reference to a file system (db_bench's do).
const struct AtExit {
  AtExit() { pthread_atfork(nullptr, nullptr, Forget); }
  ~AtExit() {
    messages->End();
    registry->SyncAll();
  }
} at_exit;

// Two spellings of one path are one volume; mem:SIZE and what doesn't exist stay as they are.
std::string Canonical(const std::string& address) {
  char resolved[PATH_MAX];
  return realpath(address.c_str(), resolved) != nullptr ? std::string(resolved) : address;
}

std::shared_ptr<Volume> Registry::Open(const std::string& address, const adit_open_options* given,
                                       std::string* error) {
  const std::string canonical = Canonical(address);
  Messages::Begin();
  adit_open_options options = ADIT_OPEN_OPTIONS_INIT;
  if (given == nullptr && adit_options_from_environment(&options) < 0) {
    *error = adit_error_message();
    return nullptr;
  }
  std::lock_guard<std::mutex> guard(mutex_);
  const auto found = volumes_.find(canonical);
  Entry entry;
  if (found != volumes_.end()) {
    if (auto volume = found->second.volume.lock()) return volume;
    // Its owner is going, and will find that it needn't close it; or is gone, and couldn't.
    entry = found->second;
  } else {
    const adit_open_options* chosen = given != nullptr ? given : &options;
    const int result = adit_open_volume(canonical.c_str(), chosen, &entry.handle);
    if (result < 0) {
      *error = adit_error_message();
      return nullptr;
    }
  }
  auto volume = std::make_shared<Volume>(entry.handle, canonical);
  entry.owner = volume.get();
  entry.volume = volume;
  volumes_[canonical] = entry;
  return volume;
}

// What the owner of a handle does at its end.
int Registry::Close(const Volume* owner) {
  messages->LetGo();  // of a LOG, which is a file of the volume
  std::lock_guard<std::mutex> guard(mutex_);
  const auto found = volumes_.find(owner->address());
  if (found == volumes_.end() || found->second.owner != owner) return 0;
  const int result = adit_close_volume(found->second.handle);
  if (result != -EBUSY) {
    volumes_.erase(found);
    return result;
  }
  // Files of a DB that was never closed keep the volume open, until somebody opens it again, or for
  // ever; their data need not wait.
  found->second.owner = nullptr;
  return adit_syncfs(found->second.handle);
}

void Registry::SyncAll() {
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& entry : volumes_) {
    if (adit_syncfs(entry.second.handle) < 0) {
      fprintf(stderr, "adit: syncing %s at exit: %s\n", entry.first.c_str(), adit_error_message());
    }
  }
}

}  // namespace

Volume::Volume(adit_volume* handle, std::string address)
    : handle_(handle), address_(std::move(address)) {
  adit_statfs statfs = ADIT_STATFS_INIT;
  if (adit_volume_statfs(handle_, &statfs) == 0) id_ = statfs.volume_id[0];
}

Volume::~Volume() {
  const int result = registry->Close(this);
  if (result < 0) {
    fprintf(stderr, "adit: closing %s: %s\n", address_.c_str(), adit_error_message());
  }
}

std::shared_ptr<Volume> OpenVolume(const std::string& address, const adit_open_options* options,
                                   std::string* error) {
  return registry->Open(address, options, error);
}

}  // namespace adit_rocksdb
