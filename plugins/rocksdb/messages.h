// Messages of Adit (adit_set_log), on their way to standard error and to RocksDB's LOG.
//
// RocksDB tells a FileSystem of no info_log, but has it make the default one, which is a file of
// the volume. So the last logger that was made gets the messages, from a thread of this module: the
// thread that has a message is inside of Adit, and perhaps of that very logger, whose mutex it
// holds then. Standard error gets them at once, and alone when the volume takes no more writes: its
// LOG can't be written, and a RocksDB with assertions (Debian's) aborts at the second attempt.
//
// Invariants: no thread that emits a message waits for a logger; a logger is kept only while a
// message is written to it, which LetGo waits for; at most kWaitingMax messages wait, and the
// others are on standard error only.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "adit.h"
#include "rocksdb/env.h"

namespace adit_rocksdb {

class Messages {
 public:
  // Messages come from now on; nothing if they do.
  static void Begin();
  // The logger's file is in that volume.
  void SetLogger(const std::shared_ptr<rocksdb::Logger>& logger, adit_volume* volume);
  // Returns when what waits is in the log: for a DB that closes its logger next.
  void Drain();
  // Returns when no logger is kept.
  void LetGo();
  // Hands on what waits. Messages after this are on standard error only.
  void End();

 private:
  struct Message {
    int level;
    std::string text;
  };
  static constexpr size_t kWaitingMax = 256;

  // The last logger. Its file keeps the volume open.
  struct Log {
    std::weak_ptr<rocksdb::Logger> logger;
    adit_volume* volume = nullptr;
  };

  static void Take(void*, int level, const char* text);
  void HandOn();
  void Write(const Log& log, const Message& message);

  std::mutex mutex_;  // guards what is below
  std::condition_variable changed_;
  Log log_;
  std::deque<Message> waiting_;
  std::thread thread_;
  bool busy_ = false;  // a message is being written
  bool ended_ = false;

  std::mutex writing_;  // held while a logger is kept
};

// Never destroyed: any thread may have a message until the process is gone. A forked child gets
// others: see volumes.cc.
extern Messages* messages;

}  // namespace adit_rocksdb
