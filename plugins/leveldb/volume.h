// One open volume.
//
// Invariants: one writable Volume of an address in this process, since Adit refuses a second one;
// at exit, the volumes that are still open are made durable, as closing would have done.
#pragma once

#include <memory>
#include <string>

#include "adit.h"
#include "adit_leveldb.h"

namespace adit_leveldb {

class Volume {
 public:
  static leveldb::Status Open(const std::string& address, const adit::LevelDbEnvOptions& options,
                              std::unique_ptr<Volume>* result);
  // Closes. A failure is told on standard error. If files are still open, the volume is made
  // durable and stays open for them until the process ends.
  ~Volume();
  Volume(const Volume&) = delete;
  Volume& operator=(const Volume&) = delete;

  adit_volume* handle() const { return handle_; }

 private:
  Volume(adit_volume* handle, const std::string& address) : handle_(handle), address_(address) {}

  adit_volume* const handle_;
  const std::string address_;
};

}  // namespace adit_leveldb
