// LevelDB in directories of the kernel's file system or in a volume: what one operation costs.
//
// The jobs are those of LevelDB's own benchmark, by name and by shape (keys of 16 bytes, values of
// 100 that halve when compressed, LevelDB's default options); see kUsage. Two things differ:
//
//   - Each instance has a thread and a database of its own. All begin a job together.
//   - What a job leaves to be compacted is compacted behind it, outside of the time, so that it is
//     not in the next job's.
//
// A job that wrote is read back, outside of the time: a key that it wrote last must have its value.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../../rocksdb/bench/histogram.h"
#include "../../rocksdb/bench/random.h"
#include "../adit_leveldb.h"
#include "leveldb/db.h"
#include "leveldb/iterator.h"
#include "leveldb/options.h"

using namespace leveldb;

namespace {

constexpr char kUsage[] =
    "Usage: adit-leveldb-bench PLACE [--KEY=VALUE]...\n"
    "\n"
    "PLACE is adit:VOLUME, or a directory that exists.\n"
    "\n"
    "  --jobs=fillsync,fillrandom,overwrite,readrandom,readseq,readhot,fill100K\n"
    "  --keys=100000   of each instance\n"
    "  --instances=1   1 to 10: databases, each with a thread of its own\n"
    "\n"
    "  fillsync     a new database; a hundredth of the keys, at random, each Put is durable\n"
    "  fillrandom   a new database; as many Puts as keys, at random\n"
    "  overwrite    the same again\n"
    "  readrandom   as many Gets as keys, at random\n"
    "  readseq      all that is there, in order\n"
    "  readhot      as many Gets as keys, of the first hundredth of them\n"
    "  fill100K     a new database; a hundredth of the keys, at random, 100,000 bytes each\n"
    "\n"
    "The databases, adit-leveldb-bench-0 and so on, must not exist, and are removed in the end.\n";

using Clock = std::chrono::steady_clock;

constexpr size_t kValueBytes = 100;
constexpr size_t kLargeValueBytes = 100000;

enum class Kind { kWrite, kRead, kScan };

struct Job {
  const char* name;
  Kind kind;
  bool is_new;        // on an empty database
  bool sync;
  uint64_t share;     // operations: the keys divided by this
  uint64_t hot;       // keys: the first of so many parts
  size_t value_bytes;
};

constexpr Job kJobs[] = {
    {"fillsync", Kind::kWrite, true, true, 100, 1, kValueBytes},
    {"fillrandom", Kind::kWrite, true, false, 1, 1, kValueBytes},
    {"overwrite", Kind::kWrite, false, false, 1, 1, kValueBytes},
    {"readrandom", Kind::kRead, false, false, 1, 1, kValueBytes},
    {"readseq", Kind::kScan, false, false, 1, 1, kValueBytes},
    {"readhot", Kind::kRead, false, false, 1, 100, kValueBytes},
    {"fill100K", Kind::kWrite, true, false, 100, 1, kLargeValueBytes},
};

struct Settings {
  std::string place;
  std::vector<const Job*> jobs;
  uint64_t keys = 100000;
  uint64_t instances = 1;
};

void Check(const Status& status, const std::string& what) {
  if (!status.ok()) throw std::runtime_error(what + ": " + status.ToString());
}

std::string Key(uint64_t number) {
  char key[24];
  snprintf(key, sizeof(key), "%016" PRIu64, number);
  return key;
}

// Bytes of which a half compresses away: 50 random ones, then the same again.
class Values {
 public:
  Values() {
    Random random(301);
    while (bytes_.size() < kBytes) {
      std::string piece;
      for (size_t i = 0; i < kValueBytes / 2; ++i) piece += static_cast<char>(' ' + random.Below(95));
      bytes_ += piece + piece;
    }
  }
  Slice Next(size_t len) {
    if (position_ + len > bytes_.size()) position_ = 0;
    position_ += len;
    return Slice(bytes_.data() + position_ - len, len);
  }

 private:
  static constexpr size_t kBytes = 1 << 20;
  std::string bytes_;
  size_t position_ = 0;
};

// Where threads wait for each other.
class Meeting {
 public:
  explicit Meeting(uint64_t count) : missing_(count) {}
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--missing_ == 0) all_here_.notify_all();
    all_here_.wait(lock, [this] { return missing_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  uint64_t missing_;
};

// One database. Its thread alone calls Run.
class Instance {
 public:
  Instance(Env* env, std::string path, uint64_t number, uint64_t keys)
      : env_(env), path_(std::move(path)), keys_(keys), random_(number + 1) {
    if (env_->FileExists(path_)) throw std::runtime_error(path_ + " exists; remove it, or choose another place");
  }
  ~Instance() {
    db_.reset();
    if (!opened_) return;
    const Status removed = DestroyDB(path_, DatabaseOptions());
    if (!removed.ok()) fprintf(stderr, "adit-leveldb-bench: remove %s: %s\n", path_.c_str(), removed.ToString().c_str());
  }

  // An empty database, or the one that is there.
  void Prepare(bool is_new) {
    if (db_ != nullptr && !is_new) return;
    db_.reset();
    if (opened_) Check(DestroyDB(path_, DatabaseOptions()), "remove " + path_);
    opened_ = true;
    DB* db = nullptr;
    Check(DB::Open(DatabaseOptions(), path_, &db), "open " + path_);
    db_.reset(db);
  }

  void Run(const Job& job) {
    latencies = Histogram();
    operations = found = 0;
    begin = end = Clock::now();
    switch (job.kind) {
      case Kind::kWrite:
        return Write(job);
      case Kind::kRead:
        return Read(job);
      case Kind::kScan:
        return Scan();
    }
  }

  // Outside of the time.
  void Settle(const Job& job) {
    if (job.kind != Kind::kWrite) return;
    std::string value;
    Check(db_->Get(ReadOptions(), last_key_, &value), "read back " + last_key_);
    if (value != last_value_) throw std::runtime_error("read back " + last_key_ + ": another value");
    db_->CompactRange(nullptr, nullptr);
  }

  Histogram latencies;  // ns
  uint64_t operations = 0;
  uint64_t found = 0;
  Clock::time_point begin, end;  // of the job; the end is that of its last operation so far

 private:

  Options DatabaseOptions() const {
    Options options;
    options.env = env_;
    options.create_if_missing = true;
    return options;
  }

  // An operation ends where the next one begins.
  void Count() {
    const auto now = Clock::now();
    latencies.Add(static_cast<uint64_t>(std::chrono::nanoseconds(now - end).count()));
    end = now;
    ++operations;
  }

  void Write(const Job& job) {
    WriteOptions options;
    options.sync = job.sync;
    const uint64_t count = std::max<uint64_t>(keys_ / job.share, 1);
    Slice value;
    while (operations < count) {
      last_key_ = Key(random_.Below(keys_));
      value = values_.Next(job.value_bytes);
      Check(db_->Put(options, last_key_, value), "put");
      Count();
    }
    last_value_ = value.ToString();
  }

  void Read(const Job& job) {
    const uint64_t range = std::max<uint64_t>(keys_ / job.hot, 1);
    std::string value;
    while (operations < keys_) {
      const Status status = db_->Get(ReadOptions(), Key(random_.Below(range)), &value);
      if (!status.IsNotFound()) {
        Check(status, "get");
        ++found;
      }
      Count();
    }
  }

  void Scan() {
    const std::unique_ptr<Iterator> all(db_->NewIterator(ReadOptions()));
    for (all->SeekToFirst(); all->Valid(); all->Next()) {
      ++found;
      Count();
    }
    Check(all->status(), "scan");
  }

  Env* const env_;
  const std::string path_;
  const uint64_t keys_;
  Random random_;
  Values values_;
  std::unique_ptr<DB> db_;
  bool opened_ = false;
  std::string last_key_, last_value_;
};

void Measure(const Job& job, const std::vector<std::unique_ptr<Instance>>& instances) {
  Meeting meeting(instances.size());
  std::vector<std::string> failures(instances.size());
  std::vector<std::thread> threads;
  for (const auto& instance : instances) instance->Prepare(job.is_new);
  for (size_t i = 0; i < instances.size(); ++i) {
    threads.emplace_back([&, i] {
      meeting.Wait();
      try {
        instances[i]->Run(job);
      } catch (const std::exception& error) {
        failures[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures)
    if (!failure.empty()) throw std::runtime_error(std::string(job.name) + ": " + failure);

  Histogram latencies;
  uint64_t operations = 0, found = 0;
  Clock::time_point first = Clock::time_point::max(), last = Clock::time_point::min();
  for (const auto& instance : instances) {
    first = std::min(first, instance->begin);
    last = std::max(last, instance->end);
    latencies.Add(instance->latencies);
    operations += instance->operations;
    found += instance->found;
  }
  if (job.kind != Kind::kWrite && found == 0)
    throw std::runtime_error(std::string(job.name) + ": found nothing; a fill job must come before it");
  const std::chrono::duration<double> seconds = last - first;
  const double count = static_cast<double>(operations);
  const double mean_us = seconds.count() * 1e6 * static_cast<double>(instances.size()) / count;
  printf("%-11s %10.2f us/op %12.0f op/s %10" PRIu64 " ops", job.name, mean_us, count / seconds.count(), operations);
  for (const double fraction : {0.5, 0.99}) {
    const auto ns = latencies.Percentile(fraction);
    if (ns) printf("   p%.0f %.2f us", fraction * 100, *ns / 1000);
  }
  printf(job.kind == Kind::kRead ? "   %" PRIu64 " found\n" : "\n", found);
  fflush(stdout);
  for (const auto& instance : instances) instance->Settle(job);
}

void Run(const Settings& settings) {
  constexpr char kVolume[] = "adit:";
  std::unique_ptr<Env> owned;
  Env* env = Env::Default();
  std::string root = settings.place + "/";
  if (settings.place.rfind(kVolume, 0) == 0) {
    Check(adit::NewLevelDbEnv(settings.place.substr(strlen(kVolume)), {}, &env), "open");
    owned.reset(env);
    root = "/";
  } else if (!env->FileExists(settings.place)) {
    throw std::runtime_error(settings.place + ": no such directory; make it, or write adit:VOLUME");
  }
  std::vector<std::unique_ptr<Instance>> instances;
  for (uint64_t i = 0; i < settings.instances; ++i) {
    instances.push_back(std::make_unique<Instance>(env, root + "adit-leveldb-bench-" + std::to_string(i), i, settings.keys));
  }
  for (const Job* job : settings.jobs) Measure(*job, instances);
}

bool ParseJobs(const std::string& names, std::vector<const Job*>* jobs) {
  jobs->clear();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const Job* job = std::find_if(std::begin(kJobs), std::end(kJobs), [&](const Job& job) { return name == job.name; });
    if (job == std::end(kJobs)) return false;
    jobs->push_back(job);
    begin = end + 1;
  }
  return true;
}

bool ParseNumber(const std::string& text, uint64_t max, uint64_t* number) {
  if (text.empty() || text.size() > 12 || text.find_first_not_of("0123456789") != std::string::npos) return false;
  *number = strtoull(text.c_str(), nullptr, 10);
  return *number >= 1 && *number <= max;
}

// False for what isn't understood.
bool Parse(int count, char** words, Settings* settings) {
  for (const Job& job : kJobs) settings->jobs.push_back(&job);
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (word.rfind("--", 0) != 0 && settings->place.empty()) {
      settings->place = word;
    } else if (key == "--jobs") {
      if (!ParseJobs(value, &settings->jobs)) return false;
    } else if (key == "--keys") {
      if (!ParseNumber(value, 1000000000, &settings->keys)) return false;
    } else if (key == "--instances") {
      if (!ParseNumber(value, 10, &settings->instances)) return false;
    } else {
      return false;
    }
  }
  return !settings->place.empty();
}

}  // namespace

int main(int count, char** words) {
  Settings settings;
  if (!Parse(count, words, &settings)) {
    fputs(kUsage, stderr);
    return 2;
  }
  try {
    Run(settings);
  } catch (const std::exception& error) {
    fprintf(stderr, "adit-leveldb-bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
