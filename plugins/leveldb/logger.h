// LevelDB's log of events (LOG), a file of the volume.
//
// Invariant: each entry is one append, so entries of several threads don't mix. An entry that can't
// be written is dropped: a Logger has nobody to tell.
#pragma once

#include <cstdarg>

#include "adit.h"
#include "leveldb/env.h"

namespace adit_leveldb {

class Logger final : public leveldb::Logger {
 public:
  // The file was opened with ADIT_O_APPEND.
  explicit Logger(adit_file* file) : file_(file) {}
  ~Logger() override { adit_close(file_); }

  // Date, local time in µs and the thread before the caller's words; a newline behind them unless
  // they end with one.
  void Logv(const char* format, std::va_list arguments) override;

 private:
  adit_file* const file_;
};

}  // namespace adit_leveldb
