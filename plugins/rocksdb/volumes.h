// The volumes that this process has open, one adit_volume for each address.
//
// Invariants: a volume is opened once, however many file systems, DBs and spellings of its path
// refer to it; it is closed when the last reference goes, or, if files of it are still open then,
// synced and kept for who opens it next. What is still referred to when the process exits (a DB
// that was never closed) is made durable then, and recovered by the next open.
#pragma once

#include <memory>
#include <string>

#include "adit.h"

namespace adit_rocksdb {

class Volume {
 public:
  Volume(adit_volume* handle, std::string address);
  ~Volume();
  Volume(const Volume&) = delete;
  Volume& operator=(const Volume&) = delete;

  adit_volume* handle() const { return handle_; }
  const std::string& address() const { return address_; }

  // A number that tells this volume's files from those of others.
  uint64_t id() const { return id_; }

 private:
  adit_volume* const handle_;
  const std::string address_;
  uint64_t id_ = 0;
};

// The volume at `address`, opened if it isn't. Null on failure, with the reason in *error.
// `options` decide how it is opened; null: the environment, see adit_options_from_environment.
std::shared_ptr<Volume> OpenVolume(const std::string& address, const adit_open_options* options,
                                   std::string* error);

}  // namespace adit_rocksdb
