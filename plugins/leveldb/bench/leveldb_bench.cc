// LevelDB in directories of the kernel's file system or in a volume: what one operation costs.
//
// The jobs are those of LevelDB's own benchmark, by name and by shape (keys of 16 bytes, values of
// 100 that halve when compressed, LevelDB's default options); see kUsage. Two things differ:
//
//   - Each instance has a thread, or a process, and a database of its own. All begin a job together.
//   - What a job leaves to be compacted is compacted behind it, outside of the time, so that it is
//     not in the next job's.
//
// A job that wrote is read back, outside of the time: a key that it wrote last must have its value.
//
// The jobs ycsb-... are YCSB's core workloads, drawn as by adit-ycsb (plugins/rocksdb/bench), but each
// instance has records of its own, and values halve when compressed, as in the other jobs.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../../rocksdb/bench/histogram.h"
#include "../../rocksdb/bench/random.h"
#include "../../rocksdb/bench/resources.h"
#include "../adit_leveldb.h"
#include "leveldb/db.h"
#include "leveldb/helpers/memenv.h"
#include "leveldb/iterator.h"
#include "leveldb/options.h"

using namespace leveldb;

namespace {

constexpr char kUsage[] =
    "Usage: adit-leveldb-bench PLACE [--KEY=VALUE]...\n"
    "\n"
    "PLACE is adit:VOLUME, a directory that exists, or memory: (LevelDB's own Env without files, which\n"
    "shows what LevelDB itself costs; nothing is durable there).\n"
    "\n"
    "  --jobs=fillsync,fillrandom,overwrite,readrandom,readseq,readhot,fill100K\n"
    "  --keys=100000      of each instance\n"
    "  --value_size=100   8 to 1000000, except in fill100K\n"
    "  --instances=1      1 to 10: databases, each with a thread of its own\n"
    "  --processes=0      1: each with a process of its own, which opens PLACE by itself\n"
    "  --warm_mib=0       at first a file of so many MiB is written and removed: the cache of a server,\n"
    "                     or the kernel's, then has memory that was used before\n"
    "  --json=0           1: for programs\n"
    "\n"
    "  fillsync     a new database; a hundredth of the keys, at random, each Put is durable\n"
    "  fillrandom   a new database; as many Puts as keys, at random\n"
    "  overwrite    the same again\n"
    "  readrandom   as many Gets as keys, at random\n"
    "  readseq      all that is there, in order\n"
    "  readhot      as many Gets as keys, of the first hundredth of them\n"
    "  fill100K     a new database; a hundredth of the keys, at random, 100,000 bytes each\n"
    "\n"
    "and, as many operations as keys, on records by their popularity (zipfian):\n"
    "\n"
    "  ycsb-load    a new database; as many records as keys\n"
    "  ycsb-a       half reads, half updates      ycsb-d  95 % reads of late records, 5 % inserts\n"
    "  ycsb-b       95 % reads, 5 % updates       ycsb-e  95 % scans of up to 100, 5 % inserts\n"
    "  ycsb-c       reads                         ycsb-f  half reads, half read-modify-writes\n"
    "\n"
    "The databases, adit-leveldb-bench-0 and so on, must not exist, and are removed in the end.\n";

using Clock = std::chrono::steady_clock;

constexpr size_t kLargeValueBytes = 100000;
constexpr uint64_t kScanMax = 100;

enum class Kind { kWrite, kRead, kScan, kLoad, kMix };

// Percentages of the operations; the rest: read, modify and write.
struct Mix {
  unsigned read, update, insert, scan;
  bool latest;  // which records are popular
};

struct Job {
  const char* name;
  Kind kind;
  bool is_new;        // on an empty database
  bool sync;
  uint64_t share;     // operations: the keys divided by this
  uint64_t hot;       // keys: the first of so many parts
  size_t value_bytes; // 0: as the settings say
  Mix mix;
};

constexpr Mix kNoMix = {0, 0, 0, 0, false};

constexpr Job kJobs[] = {
    {"fillsync", Kind::kWrite, true, true, 100, 1, 0, kNoMix},
    {"fillrandom", Kind::kWrite, true, false, 1, 1, 0, kNoMix},
    {"overwrite", Kind::kWrite, false, false, 1, 1, 0, kNoMix},
    {"readrandom", Kind::kRead, false, false, 1, 1, 0, kNoMix},
    {"readseq", Kind::kScan, false, false, 1, 1, 0, kNoMix},
    {"readhot", Kind::kRead, false, false, 1, 100, 0, kNoMix},
    {"fill100K", Kind::kWrite, true, false, 100, 1, kLargeValueBytes, kNoMix},
    {"ycsb-load", Kind::kLoad, true, false, 1, 1, 0, {0, 0, 100, 0, false}},
    {"ycsb-a", Kind::kMix, false, false, 1, 1, 0, {50, 50, 0, 0, false}},
    {"ycsb-b", Kind::kMix, false, false, 1, 1, 0, {95, 5, 0, 0, false}},
    {"ycsb-c", Kind::kMix, false, false, 1, 1, 0, {100, 0, 0, 0, false}},
    {"ycsb-d", Kind::kMix, false, false, 1, 1, 0, {95, 0, 5, 0, true}},
    {"ycsb-e", Kind::kMix, false, false, 1, 1, 0, {0, 0, 5, 95, false}},
    {"ycsb-f", Kind::kMix, false, false, 1, 1, 0, {50, 0, 0, 0, false}},
};
constexpr size_t kJobsByDefault = 7;

struct Settings {
  std::string place;
  std::vector<const Job*> jobs;
  uint64_t keys = 100000;
  uint64_t value_size = 100;
  uint64_t instances = 1;
  uint64_t processes = 0;
  uint64_t warm_mib = 0;
  uint64_t json = 0;
};

void Check(const Status& status, const std::string& what) {
  if (!status.ok()) throw std::runtime_error(what + ": " + status.ToString());
}

std::string Key(uint64_t number) {
  char key[24];
  snprintf(key, sizeof(key), "%016" PRIu64, number);
  return key;
}

// The key of a record of YCSB's.
std::string RecordKey(uint64_t record) { return "user" + std::to_string(Hash(record)); }

// Bytes of which a half compresses away: 50 random ones, then the same again.
class Values {
 public:
  Values() {
    Random random(301);
    while (bytes_.size() < kBytes) {
      std::string piece;
      for (size_t i = 0; i < kRandomBytes; ++i) piece += static_cast<char>(' ' + random.Below(95));
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
  static constexpr size_t kRandomBytes = 50;
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

// What a job cost an instance.
struct Cost {
  Histogram latencies;  // ns
  uint64_t operations = 0;
  uint64_t found = 0;
  Clock::time_point begin, end;  // of the job; the end is that of its last operation so far
};

// One database, wherever it is.
class Instance {
 public:
  virtual ~Instance() = default;
  // An empty database, or the one that is there.
  virtual void Prepare(bool is_new) = 0;
  virtual Cost Run(const Job& job) = 0;
  // Reads back and compacts, outside of the time.
  virtual void Settle(const Job& job) = 0;
};

// One database of this process. Its thread alone calls Run.
class Database : public Instance, private Cost {
 public:
  Database(Env* env, std::string path, uint64_t number, const Settings& settings)
      : env_(env),
        path_(std::move(path)),
        keys_(settings.keys),
        value_bytes_(settings.value_size),
        random_(number + 1) {
    if (env_->FileExists(path_)) throw std::runtime_error(path_ + " exists; remove it, or choose another place");
  }
  ~Database() override {
    db_.reset();
    if (!opened_) return;
    const Status removed = DestroyDB(path_, DatabaseOptions());
    if (!removed.ok()) fprintf(stderr, "adit-leveldb-bench: remove %s: %s\n", path_.c_str(), removed.ToString().c_str());
  }

  void Prepare(bool is_new) override {
    if (db_ != nullptr && !is_new) return;
    db_.reset();
    if (opened_) Check(DestroyDB(path_, DatabaseOptions()), "remove " + path_);
    opened_ = true;
    DB* db = nullptr;
    Check(DB::Open(DatabaseOptions(), path_, &db), "open " + path_);
    db_.reset(db);
  }

  Cost Run(const Job& job) override {
    static_cast<Cost&>(*this) = Cost();
    begin = end = Clock::now();
    Do(job);
    return *this;
  }

  void Settle(const Job& job) override {
    if (job.kind == Kind::kRead || job.kind == Kind::kScan || last_key_.empty()) return;
    std::string value;
    Check(db_->Get(ReadOptions(), last_key_, &value), "read back " + last_key_);
    if (value != last_value_) throw std::runtime_error("read back " + last_key_ + ": another value");
    db_->CompactRange(nullptr, nullptr);
  }

 private:
  void Do(const Job& job) {
    switch (job.kind) {
      case Kind::kWrite:
        return Write(job);
      case Kind::kRead:
        return Read(job);
      case Kind::kScan:
        return Scan();
      case Kind::kLoad:
        records_ = 0;
        for (uint64_t i = 0; i < keys_; ++i) Insert();
        return;
      case Kind::kMix:
        return Do(job.mix);
    }
  }

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
      value = values_.Next(job.value_bytes != 0 ? job.value_bytes : value_bytes_);
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

  void Do(const Mix& mix) {
    if (records_ == 0) throw std::runtime_error("found nothing; ycsb-load must come before it");
    Popular popular(mix.latest, records_, keys_ * mix.insert / 100);
    const auto existing = [&] { return popular.Draw(records_, &random_); };
    while (operations < keys_) {
      const uint64_t choice = random_.Below(100);
      if (choice < mix.read) {
        ReadRecord(existing());
      } else if (choice < mix.read + mix.update) {
        WriteRecord(existing());
      } else if (choice < mix.read + mix.update + mix.insert) {
        Insert();
        continue;
      } else if (choice < mix.read + mix.update + mix.insert + mix.scan) {
        ScanFrom(existing(), 1 + random_.Below(kScanMax));
      } else {
        const uint64_t record = existing();
        ReadRecord(record);
        WriteRecord(record);
      }
      Count();
    }
  }

  void Insert() {
    WriteRecord(records_);
    ++records_;
    Count();
  }

  // A value begins with the number of its record.
  void WriteRecord(uint64_t record) {
    last_key_ = RecordKey(record);
    last_value_.assign(values_.Next(value_bytes_).data(), value_bytes_);
    memcpy(&last_value_[0], &record, sizeof(record));
    Check(db_->Put(WriteOptions(), last_key_, last_value_), "put");
  }

  void ReadRecord(uint64_t record) {
    Check(db_->Get(ReadOptions(), RecordKey(record), &read_), "get " + std::to_string(record));
    CheckRecord(record, read_);
    ++found;
  }

  void ScanFrom(uint64_t record, uint64_t count) {
    const std::unique_ptr<Iterator> at(db_->NewIterator(ReadOptions()));
    at->Seek(RecordKey(record));
    Check(at->status(), "scan");
    if (!at->Valid()) throw std::runtime_error("scan: a record is missing");
    CheckRecord(record, at->value());
    for (; count > 0 && at->Valid(); --count, at->Next()) {
      if (at->value().size() != value_bytes_) throw std::runtime_error("scan: a value of another size");
      ++found;
    }
    Check(at->status(), "scan");
  }

  void CheckRecord(uint64_t record, const Slice& value) const {
    uint64_t number = ~record;
    if (value.size() == value_bytes_) memcpy(&number, value.data(), sizeof(number));
    if (number != record) throw std::runtime_error("get " + RecordKey(record) + ": another value than was put");
  }

  Env* const env_;
  const std::string path_;
  const uint64_t keys_;
  const size_t value_bytes_;
  Random random_;
  Values values_;
  uint64_t records_ = 0;  // of YCSB's jobs
  std::string read_;
  std::unique_ptr<DB> db_;
  bool opened_ = false;
  std::string last_key_, last_value_;
};

// One database of a child process, which does what it is told by a socket. Only its latest caller waits.
class Remote : public Instance {
 public:
  // Forks: this process has no other threads yet. `make` makes the database in the child.
  explicit Remote(const std::function<std::unique_ptr<Instance>()>& make) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("no socket for a child");
    fflush(nullptr);
    child_ = fork();
    if (child_ < 0) throw std::runtime_error("no child process");
    socket_ = child_ == 0 ? ends[1] : ends[0];
    close(child_ == 0 ? ends[0] : ends[1]);
    if (child_ == 0) Serve(make);
    Answer();
  }
  ~Remote() override {
    shutdown(socket_, SHUT_WR);  // The child removes its database, and ends.
    int status = 0;
    if (waitpid(child_, &status, 0) != child_ || status != 0)
      fprintf(stderr, "adit-leveldb-bench: a child ended with status %d\n", status);
    close(socket_);
  }
  void Prepare(bool is_new) override {
    Send({kPrepare, is_new});
    Answer();
  }
  Cost Run(const Job& job) override {
    Send({kRun, static_cast<uint64_t>(&job - kJobs)});
    const std::vector<uint64_t> numbers = Answer();
    Cost cost;
    cost.operations = numbers.at(0);
    cost.found = numbers.at(1);
    cost.begin = Clock::time_point(Clock::duration(numbers.at(2)));
    cost.end = Clock::time_point(Clock::duration(numbers.at(3)));
    cost.latencies = Histogram::Of({numbers.begin() + 4, numbers.end()});
    return cost;
  }
  void Settle(const Job& job) override {
    Send({kSettle, static_cast<uint64_t>(&job - kJobs)});
    Answer();
  }

 private:
  enum Order : uint64_t { kPrepare, kRun, kSettle };

  // Both ends are of one machine and one program: numbers as they are in memory, after their count. A
  // failure is the count 0, its length and its words.
  void Send(const std::vector<uint64_t>& numbers) {
    const uint64_t count = numbers.size();
    Write(&count, sizeof(count));
    Write(numbers.data(), count * sizeof(uint64_t));
  }
  void Write(const void* bytes, size_t len) {
    for (auto* at = static_cast<const char*>(bytes); len > 0;) {
      const ssize_t written = send(socket_, at, len, MSG_NOSIGNAL);
      if (written <= 0) throw std::runtime_error("a child process has ended");
      at += written;
      len -= static_cast<size_t>(written);
    }
  }
  bool Read(void* bytes, size_t len) {
    for (auto* at = static_cast<char*>(bytes); len > 0;) {
      const ssize_t got = recv(socket_, at, len, 0);
      if (got <= 0) return false;
      at += got;
      len -= static_cast<size_t>(got);
    }
    return true;
  }
  std::vector<uint64_t> Answer() {
    uint64_t count = 0;
    std::vector<uint64_t> numbers;
    if (Read(&count, sizeof(count)) && count > 0) {
      numbers.resize(count);
      if (Read(numbers.data(), count * sizeof(uint64_t))) return numbers;
    } else if (Read(&count, sizeof(count))) {
      std::string words(count, '\0');
      if (Read(&words[0], count)) throw std::runtime_error(words);
    }
    throw std::runtime_error("a child process has ended");
  }

  // In the child, to its end.
  [[noreturn]] void Serve(const std::function<std::unique_ptr<Instance>()>& make) {
    int status = 0;
    try {
      const std::unique_ptr<Instance> instance = make();
      Send({1});
      for (uint64_t count = 0; Read(&count, sizeof(count));) {
        uint64_t order[2];
        if (!Read(order, sizeof(order))) break;
        std::vector<uint64_t> answer = {1};
        if (order[0] == kPrepare) instance->Prepare(order[1] != 0);
        if (order[0] == kSettle) instance->Settle(kJobs[order[1]]);
        if (order[0] == kRun) {
          const Cost cost = instance->Run(kJobs[order[1]]);
          answer = {cost.operations, cost.found, static_cast<uint64_t>(cost.begin.time_since_epoch().count()),
                    static_cast<uint64_t>(cost.end.time_since_epoch().count())};
          const std::vector<uint64_t> latencies = cost.latencies.Numbers();
          answer.insert(answer.end(), latencies.begin(), latencies.end());
        }
        Send(answer);
      }
    } catch (const std::exception& error) {
      const std::string words = error.what();
      const uint64_t head[2] = {0, words.size()};
      try {
        Write(head, sizeof(head));
        Write(words.data(), words.size());
      } catch (const std::exception&) {
        fprintf(stderr, "adit-leveldb-bench: %s\n", words.c_str());
      }
      status = 1;
    }
    fflush(nullptr);
    _exit(status);
  }

  pid_t child_ = -1;
  int socket_ = -1;
};

// Runs a job in all instances; returns its row.
std::string Measure(const Job& job, const Settings& settings,
                    const std::vector<std::unique_ptr<Instance>>& instances) {
  Meeting meeting(instances.size());
  std::vector<std::string> failures(instances.size());
  std::vector<Cost> costs(instances.size());
  std::vector<std::thread> threads;
  for (const auto& instance : instances) instance->Prepare(job.is_new);
  const auto busy_before = BusySeconds();
  for (size_t i = 0; i < instances.size(); ++i) {
    threads.emplace_back([&, i] {
      meeting.Wait();
      try {
        costs[i] = instances[i]->Run(job);
      } catch (const std::exception& error) {
        failures[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto busy = BusySeconds();
  for (const std::string& failure : failures)
    if (!failure.empty()) throw std::runtime_error(std::string(job.name) + ": " + failure);

  Row row;
  uint64_t found = 0;
  Clock::time_point first = Clock::time_point::max(), last = Clock::time_point::min();
  for (const Cost& cost : costs) {
    first = std::min(first, cost.begin);
    last = std::max(last, cost.end);
    row.latencies.Add(cost.latencies);
    row.operations += cost.operations;
    found += cost.found;
  }
  if ((job.kind == Kind::kRead || job.kind == Kind::kScan) && found == 0)
    throw std::runtime_error(std::string(job.name) + ": found nothing; a fill job must come before it");
  row.seconds = std::chrono::duration<double>(last - first).count();
  if (busy && busy_before) row.cpu_seconds = *busy - *busy_before;
  row.memory_bytes = MemoryBytes();
  row.id = std::string("leveldb-") + job.name;
  row.title = std::string("LevelDB ") + job.name;
  if (settings.instances > 1) row.title += ", " + std::to_string(settings.instances) + " databases";
  row.threads = settings.instances;
  const double count = static_cast<double>(row.operations);
  const double mean_us = row.seconds * 1e6 * static_cast<double>(instances.size()) / count;
  FILE* const out = settings.json ? stderr : stdout;
  fprintf(out, "%-11s %10.2f us/op %12.0f op/s %10" PRIu64 " ops", job.name, mean_us, count / row.seconds,
          row.operations);
  for (const double fraction : {0.5, 0.99}) {
    const auto ns = row.latencies.Percentile(fraction);
    if (ns) fprintf(out, "   p%.0f %.2f us", fraction * 100, *ns / 1000);
  }
  fprintf(out, job.kind == Kind::kRead ? "   %" PRIu64 " found\n" : "\n", found);
  fflush(out);
  for (const auto& instance : instances) instance->Settle(job);
  return Json(row);
}

// PLACE, opened.
struct Place {
  explicit Place(const std::string& place) {
    constexpr char kVolume[] = "adit:";
    env = Env::Default();
    root = place + "/";
    if (place.rfind(kVolume, 0) == 0) {
      Check(adit::NewLevelDbEnv(place.substr(strlen(kVolume)), {}, &env), "open");
      owned.reset(env);
      root = "/";
    } else if (place == "memory:") {
      env = NewMemEnv(env);
      owned.reset(env);
      root = "/";
    } else if (!env->FileExists(place)) {
      throw std::runtime_error(place + ": no such directory; make it, or write adit:VOLUME or memory:");
    }
  }
  std::unique_ptr<Env> owned;
  Env* env;
  std::string root;
};

// A database and, in a process of its own, the place that it is in.
class Alone : public Instance {
 public:
  Alone(uint64_t number, const Settings& settings)
      : place_(settings.place), database_(place_.env, Name(place_, number), number, settings) {}
  static std::string Name(const Place& place, uint64_t number) {
    return place.root + "adit-leveldb-bench-" + std::to_string(number);
  }
  void Prepare(bool is_new) override { database_.Prepare(is_new); }
  Cost Run(const Job& job) override { return database_.Run(job); }
  void Settle(const Job& job) override { database_.Settle(job); }

 private:
  Place place_;
  Database database_;
};

// Writes and removes a file.
void Warm(const Place& place, uint64_t mib) {
  const std::string path = place.root + "adit-leveldb-bench-warm";
  const std::string piece(1 << 20, 'w');
  WritableFile* opened = nullptr;
  Check(place.env->NewWritableFile(path, &opened), "warm");
  std::unique_ptr<WritableFile> file(opened);
  for (uint64_t i = 0; i < mib; ++i) Check(file->Append(piece), "warm");
  Check(file->Close(), "warm");
  Check(place.env->RemoveFile(path), "warm");
}

void Run(const Settings& settings) {
  if (settings.warm_mib > 0) Warm(Place(settings.place), settings.warm_mib);
  std::unique_ptr<Place> place;
  std::vector<std::unique_ptr<Instance>> instances;
  if (settings.processes == 0) place = std::make_unique<Place>(settings.place);
  for (uint64_t i = 0; i < settings.instances; ++i) {
    if (place == nullptr)
      instances.push_back(std::make_unique<Remote>([&] { return std::make_unique<Alone>(i, settings); }));
    else
      instances.push_back(std::make_unique<Database>(place->env, Alone::Name(*place, i), i, settings));
  }
  std::string rows;
  for (const Job* job : settings.jobs) rows += (rows.empty() ? "" : ",") + Measure(*job, settings, instances);
  if (settings.json) printf("{\"rows\":[%s]}\n", rows.c_str());
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

bool ParseNumber(const std::string& text, uint64_t min, uint64_t max, uint64_t* number) {
  if (text.empty() || text.size() > 12 || text.find_first_not_of("0123456789") != std::string::npos) return false;
  *number = strtoull(text.c_str(), nullptr, 10);
  return *number >= min && *number <= max;
}

// False for what isn't understood.
bool Parse(int count, char** words, Settings* settings) {
  for (size_t i = 0; i < kJobsByDefault; ++i) settings->jobs.push_back(&kJobs[i]);
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (word.rfind("--", 0) != 0 && settings->place.empty()) {
      settings->place = word;
    } else if (key == "--jobs") {
      if (!ParseJobs(value, &settings->jobs)) return false;
    } else if (key == "--keys") {
      if (!ParseNumber(value, 1, 1000000000, &settings->keys)) return false;
    } else if (key == "--value_size") {
      if (!ParseNumber(value, 8, 1000000, &settings->value_size)) return false;
    } else if (key == "--json") {
      if (!ParseNumber(value, 0, 1, &settings->json)) return false;
    } else if (key == "--warm_mib") {
      if (!ParseNumber(value, 0, 1 << 20, &settings->warm_mib)) return false;
    } else if (key == "--processes") {
      if (!ParseNumber(value, 0, 1, &settings->processes)) return false;
    } else if (key == "--instances") {
      if (!ParseNumber(value, 1, 10, &settings->instances)) return false;
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
