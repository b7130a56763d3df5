// A RocksDB that is killed, and what must be there afterwards.
//
//   kill_test write ADDRESS sync|nosync FIRST   puts keys FIRST, FIRST+1 ... for ever; writes each number to
//                                               standard output (8 bytes, native order) once its Put returned
//   kill_test verify ADDRESS COUNT              every key below COUNT has its value, and none is damaged
//   kill_test power-cut ADDRESS NAME            both, in the guest of `cargo xtask power-cut`, told in the lines of
//                                               crates/power-cut: `found NAME COUNT`, `ack NAME COUNT`, `bad NAME WORDS`
//
// The DB is /db in the volume. The process that kills, counts and calls `adit check` is the test in
// crates/capi.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
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

std::unique_ptr<DB> Open(Env* env) {
  Options options;
  options.env = env;
  options.create_if_missing = true;
  options.write_buffer_size = 1 << 20;  // so that flushes and compactions are killed too
  options.compression = kNoCompression;
  std::unique_ptr<DB> db;
  Check(OpenDb(options, "/db", &db), "open");
  return db;
}

// One write, so that lines of several processes do not mix.
void Say(const std::string& line) {
  if (write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) exit(1);
}

// Whether the keys are 0 to some number, each with its value; tells how many, or what is wrong.
bool TellFound(DB* db, const std::string& name, uint64_t* count) {
  std::ostringstream wrong;
  std::unique_ptr<Iterator> keys(db->NewIterator(ReadOptions()));
  for (keys->SeekToFirst(); keys->Valid() && wrong.str().empty(); keys->Next()) {
    if (keys->key() != Key(*count)) {
      wrong << keys->key().ToString() << " instead of " << Key(*count);
    } else if (keys->value() != Value(*count)) {
      wrong << Key(*count) << " has another value";
    }
    ++*count;
  }
  if (!keys->status().ok()) wrong << keys->status().ToString();
  if (const Status status = db->VerifyChecksum(); !status.ok()) wrong << status.ToString();
  const bool whole = wrong.str().empty();
  Say((whole ? "found " : "bad ") + name + " " + (whole ? std::to_string(*count) : wrong.str()) + "\n");
  return whole;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: kill_test write ADDRESS sync|nosync FIRST | verify ADDRESS COUNT | power-cut ADDRESS NAME\n");
    return 2;
  }
  std::shared_ptr<FileSystem> fs;
  Check(FileSystem::CreateFromString(ConfigOptions(), std::string("adit://") + argv[2], &fs), argv[2]);
  std::unique_ptr<Env> env = NewCompositeEnv(fs);
  auto db = Open(env.get());
  if (strcmp(argv[1], "verify") == 0) {
    const uint64_t count = strtoull(argv[3], nullptr, 10);
    std::string value;
    for (uint64_t i = 0; i < count; ++i) {
      const Status status = db->Get(ReadOptions(), Key(i), &value);
      if (!status.ok() || value != Value(i)) {
        fprintf(stderr, "key %llu of %llu: %s\n", static_cast<unsigned long long>(i),
                static_cast<unsigned long long>(count), status.ToString().c_str());
        return 1;
      }
    }
    Check(db->VerifyChecksum(), "verify checksums");
    return 0;
  }
  WriteOptions options;
  if (strcmp(argv[1], "power-cut") == 0) {
    const std::string name = argv[3];
    options.sync = true;
    uint64_t count = 0;
    if (!TellFound(db.get(), name, &count)) return 1;
    while (access("/tmp/go", F_OK) != 0) usleep(50000);  // until everything else was verified
    for (;; ++count) {
      Check(db->Put(options, Key(count), Value(count)), "put");
      Say("ack " + name + " " + std::to_string(count + 1) + "\n");
    }
  }
  options.sync = strcmp(argv[3], "sync") == 0;
  for (uint64_t i = strtoull(argv[4], nullptr, 10);; ++i) {
    Check(db->Put(options, Key(i), Value(i)), "put");
    if (write(STDOUT_FILENO, &i, sizeof(i)) != sizeof(i)) return 0;
  }
}
