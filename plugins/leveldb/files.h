// Open files of LevelDB on open files of Adit.
//
// Invariants:
//
//   1. What was appended is in the file, in the buffer, or lost by a failure that is kept: a Sync
//      that returns OK has made durable all that was ever appended.
//   2. The first failure of a writable file stays: LevelDB's log and manifest have lost their place
//      behind a piece that is missing.
//
//   3. A table is written once and then only read, so a copy of it in memory stays equal to it.
//
// A file belongs to its Env's volume, which outlives it. Not here: mapped files, and a limit of
// open ones; reading costs no system call, and an open file is no descriptor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "adit.h"
#include "leveldb/env.h"
#include "leveldb/slice.h"

namespace adit_leveldb {

class SequentialFile final : public leveldb::SequentialFile {
 public:
  SequentialFile(adit_file* file, std::string path) : file_(file), path_(std::move(path)) {}
  ~SequentialFile() override { adit_close(file_); }

  leveldb::Status Read(size_t len, leveldb::Slice* result, char* scratch) override;
  leveldb::Status Skip(uint64_t len) override;

 private:
  adit_file* const file_;
  const std::string path_;
  uint64_t offset_ = 0;
};

// Which tables of an Env are copied in memory, within a bound.
class TableCopies {
 public:
  explicit TableCopies(uint64_t bytes) : left_bytes_(bytes) {}
  bool Take(uint64_t bytes);
  void Return(uint64_t bytes) { left_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  // Somebody writes this table; he alone opens it next, to see whether it is whole.
  void Written(const std::string& path);
  // Forgets that. Was it so?
  bool Forget(const std::string& path);

 private:
  std::atomic<uint64_t> left_bytes_;
  std::mutex mutex_;
  std::set<std::string> written_;
};

bool IsTable(const std::string& path);

// Reads pages of the volume's cache, and a table from a copy in memory of its own: LevelDB takes blocks
// from there by pointer, as from a mapped file. A table is copied when LevelDB's background thread
// opens what it wrote; an older one when half of its size has been read at random, which costs about as
// much. Reads that follow each other (a compaction, a scan) don't count.
class RandomAccessFile final : public leveldb::RandomAccessFile {
 public:
  RandomAccessFile(adit_file* file, std::string path, std::shared_ptr<TableCopies> copies);
  ~RandomAccessFile() override;

  leveldb::Status Read(uint64_t offset, size_t len, leveldb::Slice* result,
                       char* scratch) const override;

 private:
  // Copies the table, if there is memory.
  bool Copy() const;
  // Counts what was read; makes the copy if it is time.
  void Count(uint64_t offset, uint64_t read_bytes) const;

  adit_file* const file_;
  const std::string path_;
  const std::shared_ptr<TableCopies> copies_;
  const uint64_t size_bytes_;  // 0: no table, so it gets no copy
  mutable std::atomic<uint64_t> next_offset_{0};  // where the last read ended
  mutable std::atomic<uint64_t> read_bytes_{0};   // at random
  mutable std::atomic<char*> copy_{nullptr};
};

class WritableFile final : public leveldb::WritableFile {
 public:
  WritableFile(adit_file* file, std::string path);
  ~WritableFile() override;

  leveldb::Status Append(const leveldb::Slice& data) override;
  // Writes nothing of a table, which waits for a full buffer, Sync or Close: LevelDB flushes after
  // each block, and reads a table only when it is whole.
  leveldb::Status Flush() override;
  // One fdatasync: it also makes the names durable that lead to the file, so a new MANIFEST needs
  // no sync of its directory; nor do the tables that it names, which were synced before it.
  leveldb::Status Sync() override;
  leveldb::Status Close() override;

 private:
  // LevelDB appends a record in two pieces, a table's block in two, then flushes: smaller pieces
  // wait in a buffer for the next one.
  static constexpr size_t kBufferBytes = 64 << 10;
  static constexpr size_t kTableBufferBytes = 256 << 10;
  // A copy of this much costs more than a second call.
  static constexpr size_t kCopiedBytesMax = 16 << 10;

  // A server refuses appends of more than 64 MiB, which a value may have.
  static constexpr size_t kAppendedBytesMax = 32 << 20;

  // Writes the buffer, and the data behind it, at the end of the file.
  leveldb::Status WriteOut(leveldb::Slice data);

  adit_file* file_;  // null when closed
  const std::string path_;
  const bool is_table_;
  leveldb::Status failed_;  // the first failure
  size_t buffered_bytes_ = 0;
  const size_t buffer_bytes_;
  const std::unique_ptr<char[]> buffer_;
};

}  // namespace adit_leveldb
