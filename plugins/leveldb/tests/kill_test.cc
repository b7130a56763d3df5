// A LevelDB that is killed, and what must be there afterwards.
//
//   kill_test write VOLUME sync|nosync FIRST   puts keys FIRST, FIRST+1 ... for ever; writes each number to
//                                              standard output (8 bytes, native order) once its Put returned
//   kill_test verify VOLUME COUNT              every key below COUNT has its value, and none is damaged
//   kill_test leave VOLUME COUNT               puts COUNT keys without sync, and exits without closing anything
//
// The DB is /db in the volume. The process that kills, counts and calls `adit check` is the test in
// crates/capi.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "../adit_leveldb.h"
#include "leveldb/db.h"
#include "leveldb/iterator.h"
#include "leveldb/options.h"

using namespace leveldb;

namespace {

void Check(const Status& status, const char* what) {
  if (status.ok()) return;
  fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  exit(1);
}

std::string Key(uint64_t i) {
  char key[24];
  snprintf(key, sizeof(key), "key%012llu", static_cast<unsigned long long>(i));
  return key;
}

// 100 bytes that depend on i and do not compress.
std::string Value(uint64_t i) {
  std::string value(100, '\0');
  uint64_t state = i * 0x9E3779B97F4A7C15ull + 1;
  for (char& byte : value) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<char>(state);
  }
  return value;
}

void Verify(DB* db, uint64_t count) {
  ReadOptions options;
  options.verify_checksums = true;
  std::string value;
  for (uint64_t i = 0; i < count; ++i) {
    Check(db->Get(options, Key(i), &value), Key(i).c_str());
    if (value != Value(i)) Check(Status::Corruption("another value"), Key(i).c_str());
  }
  // Those that were not acknowledged may be there, each with its value, and none is left out.
  uint64_t seen = 0;
  const std::unique_ptr<Iterator> all(db->NewIterator(options));
  for (all->SeekToFirst(); all->Valid(); all->Next(), ++seen) {
    if (all->key() != Key(seen) || all->value() != Value(seen)) {
      Check(Status::Corruption("no such key, or another value"), all->key().ToString().c_str());
    }
  }
  Check(all->status(), "scan");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc != (mode == "write" ? 5 : 4)) {
    fprintf(stderr, "usage: kill_test write VOLUME sync|nosync FIRST | verify VOLUME COUNT | leave VOLUME COUNT\n");
    return 2;
  }
  Env* env = nullptr;
  Check(adit::NewLevelDbEnv(argv[2], {}, &env), "volume");
  Options options;
  options.env = env;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  options.write_buffer_size = 256 << 10;  // so that flushes and compactions are killed too
  options.compression = kNoCompression;
  DB* db = nullptr;
  Check(DB::Open(options, "/db", &db), "open");
  const uint64_t number = strtoull(argv[argc - 1], nullptr, 10);
  if (mode == "verify") {
    Verify(db, number);
    delete db;
    delete env;
    return 0;
  }
  WriteOptions how;
  if (mode == "leave") {
    for (uint64_t i = 0; i < number; ++i) Check(db->Put(how, Key(i), Value(i)), "put");
    return 0;
  }
  how.sync = strcmp(argv[3], "sync") == 0;
  for (uint64_t i = number;; ++i) {
    Check(db->Put(how, Key(i), Value(i)), "put");
    if (write(STDOUT_FILENO, &i, sizeof(i)) != sizeof(i)) return 0;
  }
}
