// One instance of a DB that several processes have open: one of them for writing, others as
// secondary or read-only instances.
//
//   instances_test primary|secondary|read-only ADDRESS [direct]
//
// The DB is /db in the volume; with `direct`, tables are read and written without the cache. It is
// told what to do in lines of standard input, and answers each with "done", or ends with 1 and words
// on standard error:
//
//   put FIRST END ROUND      keys FIRST to END - 1 get their values of that round; then it rests
//   delete FIRST END         deletes them; then it rests
//   flush                    the memtable becomes a table
//   compact                  all tables become new ones, and the old files are deleted
//   catch-up                 a secondary reads what the primary has written meanwhile
//   verify FIRST END ROUND   they have these values, by Get and by an iterator
//   absent FIRST END         they are not there, for Get and for an iterator
//   count COUNT              there are so many keys
//   checksums                all tables of this instance are there by name, and their checksums are right
//   hold                     an iterator begins
//   held FIRST END ROUND     the held iterator finds these keys and no others
//   refused                  a Put is
//
// The process that starts the instances and tells them is the test in crates/capi.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "../bench/open_db.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/file_system.h"
#include "rocksdb/options.h"

using namespace rocksdb;

namespace {

std::string command;  // that is being done

[[noreturn]] void Fail(const std::string& words) {
  fprintf(stderr, "%s: %s\n", command.c_str(), words.c_str());
  exit(1);
}

void Check(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

std::string Key(uint64_t i) {
  char key[24];
  snprintf(key, sizeof(key), "key%012llu", static_cast<unsigned long long>(i));
  return key;
}

// 200 bytes that depend on both numbers and do not compress.
std::string Value(uint64_t i, uint64_t round) {
  std::string value(200, '\0');
  uint64_t state = (i << 8 | round) * 0x9E3779B97F4A7C15ull + 1;
  for (char& byte : value) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<char>(state);
  }
  return value;
}

// The pairs from where the iterator is are those of FIRST to END - 1.
void ExpectPairs(Iterator* keys, uint64_t first, uint64_t end, uint64_t round) {
  for (uint64_t i = first; i < end; ++i, keys->Next()) {
    if (!keys->Valid()) Fail("the iterator ends before " + Key(i) + ": " + keys->status().ToString());
    if (keys->key() != Key(i)) Fail("the iterator has " + keys->key().ToString() + " instead of " + Key(i));
    if (keys->value() != Value(i, round)) Fail("the iterator has another value of " + Key(i));
  }
}

class Instance {
 public:
  Instance(const std::string& kind, Env* env, bool direct) {
    Options options;
    options.env = env;
    options.create_if_missing = true;
    options.write_buffer_size = 256 << 10;  // flushes and compactions by themselves, too
    options.compression = kNoCompression;
    options.max_open_files = -1;  // a secondary keeps the tables that the primary deletes
    options.use_direct_reads = direct;
    options.use_direct_io_for_flush_and_compaction = direct;
    DB* db = nullptr;
    if (kind == "primary") {
      Check(OpenDb(options, "/db", &db_));
      return;
    }
    std::unique_ptr<DB>* const opened = &db_;
#if ROCKSDB_MAJOR >= 11
    (void)db;
    Check(kind == "secondary" ? DB::OpenAsSecondary(options, "/db", "/secondary", opened)
                              : DB::OpenForReadOnly(options, "/db", opened));
#else
    Check(kind == "secondary" ? DB::OpenAsSecondary(options, "/db", "/secondary", &db)
                              : DB::OpenForReadOnly(options, "/db", &db));
    opened->reset(db);
#endif
  }

  void Do(const std::string& verb, uint64_t first, uint64_t end, uint64_t round) {
    if (verb == "put") {
      for (uint64_t i = first; i < end; ++i) Check(db_->Put(WriteOptions(), Key(i), Value(i, round)));
      Rest();
    } else if (verb == "delete") {
      for (uint64_t i = first; i < end; ++i) Check(db_->Delete(WriteOptions(), Key(i)));
      Rest();
    } else if (verb == "flush") {
      Check(db_->Flush(FlushOptions()));
    } else if (verb == "compact") {
      CompactRangeOptions all;
      all.bottommost_level_compaction = BottommostLevelCompaction::kForce;
      Check(db_->CompactRange(all, nullptr, nullptr));
    } else if (verb == "catch-up") {
      Check(db_->TryCatchUpWithPrimary());
    } else if (verb == "verify") {
      Verify(first, end, round);
    } else if (verb == "absent") {
      Absent(first, end);
    } else if (verb == "count") {
      Count(first);
    } else if (verb == "checksums") {
      Check(db_->VerifyChecksum());
    } else if (verb == "hold") {
      held_.reset(db_->NewIterator(ReadOptions()));
      held_->SeekToFirst();
    } else if (verb == "held") {
      ExpectPairs(held_.get(), first, end, round);
      if (held_->Valid()) Fail("the iterator has more: " + held_->key().ToString());
      Check(held_->status());
      held_.reset();
    } else if (verb == "refused") {
      if (db_->Put(WriteOptions(), "key", "value").ok()) Fail("a Put succeeds");
    } else {
      Fail("no such command");
    }
  }

 private:
  // Waits until nothing is flushed or compacted. A secondary reads the MANIFEST, then the logs: what is
  // flushed in between is in no table that it knows, and its log is deleted. So it misses that until it
  // catches up again, on any file system.
  void Rest() {
    const std::string busy[] = {DB::Properties::kMemTableFlushPending, DB::Properties::kNumRunningFlushes,
                                DB::Properties::kCompactionPending, DB::Properties::kNumRunningCompactions};
    for (const std::string& property : busy) {
      uint64_t number = 1;
      while (db_->GetIntProperty(property, &number) && number != 0) Env::Default()->SleepForMicroseconds(1000);
    }
  }

  void Verify(uint64_t first, uint64_t end, uint64_t round) {
    std::string value;
    for (uint64_t i = first; i < end; ++i) {
      const Status status = db_->Get(ReadOptions(), Key(i), &value);
      if (!status.ok()) Fail(Key(i) + ": " + status.ToString());
      if (value != Value(i, round)) Fail(Key(i) + " has another value");
    }
    std::unique_ptr<Iterator> keys(db_->NewIterator(ReadOptions()));
    keys->Seek(Key(first));
    ExpectPairs(keys.get(), first, end, round);
  }

  void Absent(uint64_t first, uint64_t end) {
    std::string value;
    for (uint64_t i = first; i < end; ++i) {
      const Status status = db_->Get(ReadOptions(), Key(i), &value);
      if (!status.IsNotFound()) Fail(Key(i) + ": " + status.ToString());
    }
    std::unique_ptr<Iterator> keys(db_->NewIterator(ReadOptions()));
    keys->Seek(Key(first));
    if (keys->Valid() && keys->key().compare(Key(end)) < 0) Fail("the iterator has " + keys->key().ToString());
    Check(keys->status());
  }

  void Count(uint64_t expected) {
    uint64_t count = 0;
    std::unique_ptr<Iterator> keys(db_->NewIterator(ReadOptions()));
    for (keys->SeekToFirst(); keys->Valid(); keys->Next()) ++count;
    Check(keys->status());
    if (count != expected) Fail(std::to_string(count) + " keys instead of " + std::to_string(expected));
  }

  std::unique_ptr<DB> db_;
  std::unique_ptr<Iterator> held_;  // before the DB
};

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc < 3 ? "" : argv[1];
  if (kind != "primary" && kind != "secondary" && kind != "read-only") {
    fprintf(stderr, "usage: instances_test primary|secondary|read-only ADDRESS [direct]\n");
    return 2;
  }
  command = "open " + kind;
  std::shared_ptr<FileSystem> fs;
  Check(FileSystem::CreateFromString(ConfigOptions(), std::string("adit://") + argv[2], &fs));
  std::unique_ptr<Env> env = NewCompositeEnv(fs);
  Instance instance(kind, env.get(), argc > 3 && strcmp(argv[3], "direct") == 0);
  std::cout << "done" << std::endl;
  while (std::getline(std::cin, command)) {
    std::istringstream words(command);
    std::string verb;
    uint64_t numbers[3] = {0, 0, 0};
    words >> verb;
    for (uint64_t& number : numbers) words >> number;
    instance.Do(verb, numbers[0], numbers[1], numbers[2]);
    std::cout << "done" << std::endl;
  }
  return 0;
}
