// The core workloads of YCSB on RocksDB, on a directory of the kernel's file system or, by
// --fs_uri, in a volume.
//
// What the workloads are, how keys are named and what is drawn how is that of YCSB 0.17
// (CoreWorkload, ZipfianGenerator, ScrambledZipfianGenerator, SkewedLatestGenerator,
// Utils.fnvhash64; https://github.com/brianfrankcooper/YCSB; B. F. Cooper et al., "Benchmarking
// Cloud Serving Systems with YCSB", SoCC 2010). Three things are simpler here:
//
//   - The 10 fields of 100 bytes are one value of 1000 bytes, which do not compress. An update replaces it as a whole.
//   - Each workload runs on what the previous one left, in the order asked for; so there are more records after D and E.
//   - A row ends with its last operation, that of the load when all is flushed and compacted. What the others leave
//     to be compacted is waited for behind them, so that it isn't in the next row.
//
// The DB is opened as db_bench does it without options (7.8: snappy, 64 MiB of memtable, no
// filters, 2 background jobs, WAL and memtable pipelined); --cache_size is that of the block cache,
// 8 MiB there. Each thread has random numbers of its own, by seed; which records are the latest
// ones depends on the other threads, too.
//
// What a row costs is told as crates/bench/src/resources.rs does it, and printed as its
// Measurement.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "histogram.h"
#include "open_db.h"
#include "random.h"
#include "resources.h"
#include "rocksdb/cache.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/options.h"
#include "rocksdb/table.h"

using namespace rocksdb;

namespace {

constexpr char kUsage[] =
    "Usage: adit-ycsb --db=PATH [--fs_uri=adit://VOLUME] [--KEY=VALUE]...\n"
    "\n"
    "  --workloads=ABCDEF   one after the other, on one DB, after the load\n"
    "  --records=100000     how many are loaded\n"
    "  --operations=100000  of each workload, all threads together\n"
    "  --threads=1\n"
    "  --sync=0             1: each write is made durable\n"
    "  --cache_size=8388608 the block cache, in bytes\n"
    "  --value_size=1000    8 or more\n"
    "\n"
    "The DB must not exist, and is removed in the end. For --fs_uri=adit://..., LD_PRELOAD libadit_rocksdb.so.\n";

struct Settings {
  std::string db;
  std::string fs_uri;
  std::string workloads = "ABCDEF";
  uint64_t records = 100000;
  uint64_t operations = 100000;
  uint64_t threads = 1;
  uint64_t sync = 0;
  uint64_t cache_size = 8 << 20;
  uint64_t value_size = 1000;
};

// Percentages of the operations.
struct Workload {
  char name;
  const char* what;
  unsigned read, update, insert, scan;  // the rest: read, modify and write
  bool latest;                          // which records are popular
  bool is_load;
  unsigned values_an_operation;  // 0: not the same in each
};

constexpr Workload kLoad = {'-', "load, until compacted", 0, 0, 100, 0, false, true, 1};
constexpr Workload kWorkloads[] = {
    {'A', "A: read 50 %, update 50 %", 50, 50, 0, 0, false, false, 1},
    {'B', "B: read 95 %, update 5 %", 95, 5, 0, 0, false, false, 1},
    {'C', "C: read", 100, 0, 0, 0, false, false, 1},
    {'D', "D: read latest 95 %, insert 5 %", 95, 0, 5, 0, true, false, 1},
    {'E', "E: scan 95 %, insert 5 %", 0, 0, 5, 95, false, false, 0},
    {'F', "F: read 50 %, read-modify-write 50 %", 50, 0, 0, 0, false, false, 0},
};

constexpr uint64_t kScanMax = 100;
constexpr uint64_t kReadBack = 1000;  // records looked up after the load

void Check(const Status& status, const std::string& what) {
  if (!status.ok()) throw std::runtime_error(what + ": " + status.ToString());
}

// The key of a record. They are numbered as they are inserted.
std::string Key(uint64_t record) { return "user" + std::to_string(Hash(record)); }

// Which records there are: those below Count(), and some that are just being inserted.
class Records {
 public:
  uint64_t Count() const { return count_.load(std::memory_order_acquire); }
  uint64_t Begin() { return next_.fetch_add(1); }

  void Inserted(uint64_t record) {
    std::lock_guard<std::mutex> lock(mutex_);
    early_.insert(record);
    uint64_t count = Count();
    while (!early_.empty() && *early_.begin() == count) {
      early_.erase(early_.begin());
      ++count;
    }
    count_.store(count, std::memory_order_release);
  }

 private:
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> count_{0};
  std::mutex mutex_;
  std::set<uint64_t> early_;  // inserted, while one before them isn't yet
};

// The DB, and what all threads use.
struct Stage {
  const Settings& settings;
  std::unique_ptr<DB> db;
  WriteOptions write_options;
  Records records;
  std::string noise;  // incompressible, far longer than a value

  explicit Stage(const Settings& given) : settings(given) {
    write_options.sync = settings.sync != 0;
    Random random(1);
    noise.resize((1 << 20) + settings.value_size);
    for (size_t i = 0; i + 8 <= noise.size(); i += 8) {
      const uint64_t word = random.Next();
      memcpy(&noise[i], &word, 8);
    }
  }
};

// One thread's part of a workload.
class Worker {
 public:
  Worker(Stage* stage, const Workload& workload, uint64_t thread, const Popular& popular)
      : stage_(stage),
        workload_(workload),
        random_(Hash(thread << 8 | static_cast<unsigned char>(workload.name))),
        popular_(popular) {}

  Histogram latencies;

  void Run(uint64_t operations, const std::atomic<bool>& stop) {
    for (uint64_t i = 0; i < operations && !stop.load(std::memory_order_relaxed); ++i) {
      const auto began = std::chrono::steady_clock::now();
      Operate();
      const auto took = std::chrono::steady_clock::now() - began;
      latencies.Add(static_cast<uint64_t>(std::chrono::nanoseconds(took).count()));
    }
  }

  // The record must be there, with its value.
  void Read(uint64_t record) {
    const std::string key = Key(record);
    PinnableSlice value;
    const Status status = stage_->db->Get(read_options_, stage_->db->DefaultColumnFamily(), key, &value);
    Check(status, "get " + key);
    CheckValue(record, value);
  }

 private:
  void Operate() {
    uint64_t choice = random_.Below(100);
    const auto is = [&choice](unsigned percent) {
      const bool chosen = choice < percent;
      choice -= percent;
      return chosen;
    };
    if (is(workload_.read)) return Read(Existing());
    if (is(workload_.update)) return Write(Existing());
    if (is(workload_.insert)) return Insert();
    if (is(workload_.scan)) return Scan(Existing(), 1 + random_.Below(kScanMax));
    const uint64_t record = Existing();
    Read(record);
    Write(record);
  }

  // Draws a record that is there.
  uint64_t Existing() { return popular_.Draw(stage_->records.Count(), &random_); }

  // A value begins with the number of its record.
  void Write(uint64_t record) {
    const size_t begin = random_.Below(1 << 20);
    value_.assign(stage_->noise, begin, stage_->settings.value_size);
    memcpy(&value_[0], &record, sizeof(record));
    const std::string key = Key(record);
    Check(stage_->db->Put(stage_->write_options, key, value_), "put " + key);
  }

  void Insert() {
    const uint64_t record = stage_->records.Begin();
    Write(record);
    stage_->records.Inserted(record);
  }

  void Scan(uint64_t record, uint64_t count) {
    const std::string key = Key(record);
    std::unique_ptr<Iterator> at(stage_->db->NewIterator(read_options_));
    at->Seek(key);
    if (at->Valid() && at->key() == key) {
      CheckValue(record, at->value());
    } else {
      Check(at->status(), "scan from " + key);
      throw std::runtime_error("scan from " + key + ": it isn't there");
    }
    for (; count > 0 && at->Valid(); --count, at->Next()) {
      if (at->value().size() != stage_->settings.value_size)
        throw std::runtime_error("scan from " + key + ": a value of another size");
    }
    Check(at->status(), "scan from " + key);
  }

  void CheckValue(uint64_t record, const Slice& value) const {
    uint64_t found = 0;
    if (value.size() == stage_->settings.value_size) {
      memcpy(&found, value.data(), sizeof(found));
      if (found == record) return;
    }
    throw std::runtime_error("get " + Key(record) + ": another value than was put");
  }

  Stage* stage_;
  const Workload& workload_;
  Random random_;
  Popular popular_;
  const ReadOptions read_options_;
  std::string value_;
};

// Waits until all memtables are flushed, and nothing is left to compact.
void Settle(DB* db) {
  Check(db->Flush(FlushOptions()), "flush");
  const auto busy = [db] {
    for (const std::string* property :
         {&DB::Properties::kMemTableFlushPending, &DB::Properties::kNumRunningFlushes,
          &DB::Properties::kCompactionPending, &DB::Properties::kNumRunningCompactions}) {
      uint64_t number = 0;
      if (!db->GetIntProperty(*property, &number)) throw std::runtime_error("no property " + *property);
      if (number != 0) return true;
    }
    return false;
  };
  // Between two of them a compaction may be neither pending nor running.
  for (int idle = 0; idle < 3; ++idle) {
    if (busy()) idle = -1;
    usleep(1000);
  }
}

std::string Title(const Settings& settings, const Workload& workload) {
  std::stringstream title;
  title << "YCSB " << workload.what << (settings.sync ? ", synced" : "");
  if (settings.threads > 1) title << ", " << settings.threads << " threads";
  return title.str();
}

// Runs a workload in all threads; the first error of any ends it.
Row Measure(Stage* stage, const Workload& workload) {
  const Settings& settings = stage->settings;
  const uint64_t operations = workload.is_load ? settings.records : settings.operations;
  const uint64_t count = std::max<uint64_t>(stage->records.Count(), 1);
  const Popular popular(workload.latest, count, operations * workload.insert / 100);
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint64_t thread = 0; thread < settings.threads; ++thread)
    workers.push_back(std::make_unique<Worker>(stage, workload, thread, popular));

  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::string failure;
  const auto work = [&](uint64_t thread) {
    try {
      const bool one_more = thread < operations % settings.threads;
      workers[thread]->Run(operations / settings.threads + one_more, stop);
    } catch (const std::exception& error) {
      std::lock_guard<std::mutex> lock(mutex);
      if (failure.empty()) failure = error.what();
      stop = true;
    }
  };
  Row row;
  const auto read_before = NumberOf("/proc/self/io", "read_bytes: ");
  const auto busy_before = BusySeconds();
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < settings.threads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) throw std::runtime_error(failure);
  if (workload.is_load) Settle(stage->db.get());
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const auto busy = BusySeconds();
  const auto read = NumberOf("/proc/self/io", "read_bytes: ");
  if (busy && busy_before) row.cpu_seconds = *busy - *busy_before;
  if (read && read_before) row.device_read_bytes = *read - *read_before;
  row.memory_bytes = MemoryBytes();
  row.id = workload.is_load ? "ycsb-load" : std::string("ycsb-") + static_cast<char>(workload.name - 'A' + 'a');
  row.title = Title(settings, workload);
  row.threads = settings.threads;
  row.operation_bytes = workload.values_an_operation * settings.value_size;
  row.operations = operations;
  for (const auto& worker : workers) row.latencies.Add(worker->latencies);
  return row;
}

// The first and the last record, and some between them, by chance.
void ReadBack(Stage* stage) {
  Worker reader(stage, kLoad, 0, Popular(true, 1, 0));
  const uint64_t count = stage->records.Count();
  if (count != stage->settings.records) throw std::runtime_error("not all records were inserted");
  Random random(2);
  reader.Read(0);
  reader.Read(count - 1);
  for (uint64_t i = 0; i < std::min(count, kReadBack); ++i) reader.Read(random.Below(count));
}

std::string Measured(const Settings& settings) {
  std::shared_ptr<Env> guard;
  Options options;
  if (!settings.fs_uri.empty()) {
    ConfigOptions config;
    config.ignore_unsupported_options = false;  // else opening says that something is missing, but not what
    Check(Env::CreateFromUri(config, "", settings.fs_uri, &options.env, &guard), settings.fs_uri);
  }
  options.create_if_missing = true;
  options.error_if_exists = true;
  options.enable_pipelined_write = true;
  options.table_cache_numshardbits = 4;
  BlockBasedTableOptions table;
  table.block_cache = NewLRUCache(settings.cache_size);
  options.table_factory.reset(NewBlockBasedTableFactory(table));

  Stage stage(settings);
  Check(OpenDb(options, settings.db, &stage.db), "open " + settings.db);
  std::string rows;
  const auto measure = [&](const Workload& workload) {
    fprintf(stderr, "%s\n", Title(settings, workload).c_str());
    rows += (rows.empty() ? "" : ",") + Json(Measure(&stage, workload));
    Settle(stage.db.get());
  };
  try {
    measure(kLoad);
    ReadBack(&stage);
    for (const char name : settings.workloads)
      for (const Workload& workload : kWorkloads)
        if (workload.name == name) measure(workload);
    Check(stage.db->Close(), "close");
  } catch (...) {
    stage.db.reset();
    DestroyDB(settings.db, options);
    throw;
  }
  stage.db.reset();
  Check(DestroyDB(settings.db, options), "remove " + settings.db);
  return rows;
}

// False for what isn't understood.
bool Parse(int count, char** words, Settings* settings) {
  const std::map<std::string, std::string*> texts = {
      {"--db", &settings->db}, {"--fs_uri", &settings->fs_uri}, {"--workloads", &settings->workloads}};
  const std::map<std::string, uint64_t*> numbers = {
      {"--records", &settings->records},       {"--operations", &settings->operations},
      {"--threads", &settings->threads},       {"--sync", &settings->sync},
      {"--cache_size", &settings->cache_size}, {"--value_size", &settings->value_size}};
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return false;
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    if (const auto text = texts.find(key); text != texts.end()) {
      *text->second = value;
    } else if (const auto number = numbers.find(key); number != numbers.end()) {
      // Up to 15 digits, so that nothing that is computed of them overflows.
      if (value.empty() || value.size() > 15 || value.find_first_not_of("0123456789") != std::string::npos)
        return false;
      *number->second = strtoull(value.c_str(), nullptr, 10);
    } else {
      return false;
    }
  }
  return !settings->db.empty() && settings->workloads.find_first_not_of("ABCDEF") == std::string::npos &&
         settings->records > 0 && settings->operations > 0 && settings->threads > 0 &&
         settings->threads <= 1024 && settings->sync <= 1 && settings->value_size >= 8 &&
         settings->value_size <= 1 << 20;
}

}  // namespace

int main(int count, char** words) {
  Settings settings;
  if (!Parse(count, words, &settings)) {
    fputs(kUsage, stderr);
    return 2;
  }
  try {
    printf("{\"rows\":[%s]}\n", Measured(settings).c_str());
  } catch (const std::exception& error) {
    fprintf(stderr, "adit-ycsb: %s\n", error.what());
    return 1;
  }
  return 0;
}
