// What LevelDB expects of an Env, asked of the plugin as a program uses it.
//
//   plugin_test VOLUME      the volume must be formatted and empty, of 256 MiB or more
//
// Exit status 0 and "N claims hold", or the first claim that doesn't.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../adit_leveldb.h"
#include "leveldb/db.h"
#include "leveldb/iterator.h"
#include "leveldb/options.h"
#include "leveldb/write_batch.h"

using namespace leveldb;

namespace {

int claims = 0;

#define HOLDS(condition)                                                             \
  do {                                                                               \
    ++claims;                                                                        \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

#define OK(call)                                                                     \
  do {                                                                               \
    ++claims;                                                                        \
    const Status status_ = (call);                                                   \
    if (!status_.ok()) {                                                             \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                  \
              status_.ToString().c_str());                                           \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

#define FAILS_WITH(call, words)                                                      \
  do {                                                                               \
    ++claims;                                                                        \
    const std::string said_ = (call).ToString();                                     \
    if (said_.find(words) == std::string::npos) {                                    \
      fprintf(stderr, "%s:%d: %s: \"%s\" does not say \"%s\"\n", __FILE__, __LINE__, #call, \
              said_.c_str(), std::string(words).c_str());                            \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

// The volume as an Env, until it goes out of scope.
std::unique_ptr<Env> Open(const std::string& volume, const adit::LevelDbEnvOptions& options = {}) {
  Env* env = nullptr;
  OK(adit::NewLevelDbEnv(volume, options, &env));
  return std::unique_ptr<Env>(env);
}

Status OpenFails(const std::string& volume, const adit::LevelDbEnvOptions& options = {}) {
  Env* env = Env::Default();
  const Status status = adit::NewLevelDbEnv(volume, options, &env);
  HOLDS(!status.ok() && env == nullptr);
  return status;
}

std::unique_ptr<WritableFile> Writable(Env* env, const std::string& path) {
  WritableFile* file = nullptr;
  OK(env->NewWritableFile(path, &file));
  return std::unique_ptr<WritableFile>(file);
}

std::unique_ptr<WritableFile> Appendable(Env* env, const std::string& path) {
  WritableFile* file = nullptr;
  OK(env->NewAppendableFile(path, &file));
  return std::unique_ptr<WritableFile>(file);
}

std::set<std::string> Children(Env* env, const std::string& path) {
  std::vector<std::string> names{"dropped"};
  OK(env->GetChildren(path, &names));
  const std::set<std::string> children(names.begin(), names.end());
  HOLDS(children.size() == names.size());
  return children;
}

std::string Contents(Env* env, const std::string& path) {
  std::string data;
  OK(ReadFileToString(env, path, &data));
  return data;
}

std::string Bytes(size_t len, unsigned seed) {
  std::string bytes(len, '\0');
  for (char& byte : bytes) byte = static_cast<char>((seed = seed * 1103515245 + 12345) >> 16);
  return bytes;
}

// ------------------------------------------------------------------------------------------ volumes

void AVolumeThatCannotBeOpenedIsNamedWithWhatToDo(const std::string& volume) {
  const Status missing = OpenFails("/no/such/volume");
  HOLDS(missing.IsNotFound());
  FAILS_WITH(missing, "/no/such/volume");
  FAILS_WITH(missing, "adit mkfs");
  const bool in_server = volume.rfind("unix:", 0) == 0;
  const std::string other = volume + ".other";
  if (!in_server) {
    OK(WriteStringToFile(Env::Default(), "x", other));
    FAILS_WITH(OpenFails(other), "not an Adit volume");
    OK(Env::Default()->RemoveFile(other));
  }
  FAILS_WITH(OpenFails("/"), "neither a file nor a block device");
  FAILS_WITH(OpenFails("mem:1M"), "too small");
  adit::LevelDbEnvOptions tiny;
  tiny.cache_bytes = 4096;
  FAILS_WITH(OpenFails(volume, tiny), volume);
  setenv("ADIT_CACHE", "64Mfoo", 1);
  FAILS_WITH(OpenFails(volume), "ADIT_CACHE");
  unsetenv("ADIT_CACHE");
  if (!in_server) {
    const auto env = Open(volume);
    const Status twice = OpenFails(volume);
    FAILS_WITH(twice, "in use by plugin_test");
    FAILS_WITH(twice, "share one Env");
  }
  for (int i = 0; i < 3; ++i) Open(volume);  // closed each time
}

void AVolumeWhoseFilesAreStillOpenIsNotClosedUnderThem() {
  auto env = Open("mem:16M");
  auto file = Writable(env.get(), "/f");
  OK(file->Append("late"));
  env.reset();  // (tells it on standard error)
  OK(file->Sync());
  OK(file->Close());
}

// A child that was forked while another thread opened a volume waited for that thread's mutex for
// ever when it ended.
void AForkedChildEndsAndOpensVolumesOfItsOwn() {
  char folder[] = "/tmp/adit-fork-XXXXXX";
  HOLDS(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/s";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  strcpy(address.sun_path, path.c_str());
  const int silent = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  HOLDS(bind(silent, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  HOLDS(listen(silent, 1) == 0);
  const auto env = Open("mem:64M");
  Status refused;
  std::thread opening([&] {
    Env* none = nullptr;
    refused = adit::NewLevelDbEnv("unix:" + path, {}, &none);
  });
  const int server = accept(silent, nullptr, nullptr);  // the thread waits for an answer
  HOLDS(server >= 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);  // ends it where it hangs
    Env* own = nullptr;
    exit(adit::NewLevelDbEnv("mem:64M", {}, &own).ok() && own->FileExists("/") ? 0 : 1);
  }
  int status = -1;
  HOLDS(waitpid(child, &status, 0) == child);
  HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  close(server);
  close(silent);
  opening.join();
  HOLDS(!refused.ok());
  HOLDS(unlink(path.c_str()) == 0 && rmdir(folder) == 0);
}

void AReadOnlyVolumeIsReadAndNothingElse(const std::string& volume) {
  {
    const auto env = Open(volume);
    OK(WriteStringToFile(env.get(), "content", "/kept"));
    OK(env->CreateDir("/dir"));
    Options options;
    options.env = env.get();
    options.create_if_missing = true;
    DB* db = nullptr;
    OK(DB::Open(options, "/db", &db));
    OK(db->Put(WriteOptions(), "k", "v"));
    delete db;
  }
  adit::LevelDbEnvOptions read_only;
  read_only.read_only = true;
  {
    const auto env = Open(volume, read_only);
    HOLDS(Contents(env.get(), "/kept") == "content");
    HOLDS((Children(env.get(), "/") == std::set<std::string>{"kept", "dir", "db"}));
    WritableFile* file = nullptr;
    FileLock* lock = nullptr;
    Logger* logger = nullptr;
    FAILS_WITH(env->NewWritableFile("/kept", &file), "EROFS");
    FAILS_WITH(env->NewWritableFile("/new", &file), "IO error: /new");
    FAILS_WITH(env->NewAppendableFile("/kept", &file), "EROFS");
    HOLDS(file == nullptr);
    FAILS_WITH(env->LockFile("/db/LOCK", &lock), "/db/LOCK");
    FAILS_WITH(env->NewLogger("/LOG", &logger), "/LOG");
    HOLDS(lock == nullptr && logger == nullptr);
    FAILS_WITH(env->RemoveFile("/kept"), "EROFS");
    FAILS_WITH(env->CreateDir("/d"), "EROFS");
    FAILS_WITH(env->RemoveDir("/dir"), "EROFS");
    FAILS_WITH(env->RenameFile("/kept", "/other"), "EROFS");
    Options options;
    options.env = env.get();
    DB* db = nullptr;
    FAILS_WITH(DB::Open(options, "/db", &db), "/db");
    HOLDS(Contents(env.get(), "/kept") == "content");
  }
  const auto env = Open(volume);
  Options options;
  options.env = env.get();
  OK(DestroyDB("/db", options));
  OK(env->RemoveFile("/kept"));
  OK(env->RemoveDir("/dir"));
}

// -------------------------------------------------------------------------------------------- files

void WritableFilesShowWhatWasFlushed(Env* env) {
  auto file = Writable(env, "/w");
  OK(file->Append("hello "));
  OK(file->Append(Slice()));
  OK(file->Append("world"));
  HOLDS(Contents(env, "/w").empty());  // buffered
  OK(file->Flush());
  HOLDS(Contents(env, "/w") == "hello world");
  OK(file->Flush());
  OK(file->Append("!"));
  OK(file->Sync());
  HOLDS(Contents(env, "/w") == "hello world!");
  OK(file->Append("?"));
  OK(file->Close());
  HOLDS(Contents(env, "/w") == "hello world!?");
  OK(file->Close());
  file.reset();
  HOLDS(Contents(env, "/w") == "hello world!?");

  file = Writable(env, "/w");
  HOLDS(Contents(env, "/w").empty());
  OK(file->Append("deleted, not closed"));
  file.reset();
  HOLDS(Contents(env, "/w") == "deleted, not closed");

  file = Appendable(env, "/w");
  OK(file->Append(", appended"));
  OK(file->Sync());
  file.reset();
  HOLDS(Contents(env, "/w") == "deleted, not closed, appended");
  OK(env->RemoveFile("/w"));
  file = Appendable(env, "/w");
  OK(file->Append("made"));
  file.reset();
  HOLDS(Contents(env, "/w") == "made");
  OK(env->RemoveFile("/w"));
}

void PiecesOfAnySizeLieInTheirOrder(Env* env) {
  std::string expected;
  auto file = Writable(env, "/pieces");
  unsigned seed = 1;
  for (int i = 0; i < 400; ++i) {
    seed = seed * 1103515245 + 12345;
    // About the sizes at which the way of a piece changes, and others.
    const size_t about[] = {0, 1, 7, 100, 4096, 16 << 10, (16 << 10) + 1, 64 << 10, (64 << 10) + 1, 200000};
    const std::string piece = Bytes(about[(seed >> 16) % 10] + (seed >> 28), seed);
    OK(file->Append(piece));
    expected += piece;
    if ((seed >> 20) % 5 == 0) {
      OK((seed >> 24) % 4 == 0 ? file->Sync() : file->Flush());
      uint64_t size = 0;
      OK(env->GetFileSize("/pieces", &size));
      HOLDS(size == expected.size());
    }
  }
  OK(file->Close());
  HOLDS(Contents(env, "/pieces") == expected);
  OK(env->RemoveFile("/pieces"));
}

// LevelDB writes a value in one piece, of any size. A server refused appends of more than 64 MiB: no
// table could be made of such a value, which was in the log, and the database couldn't be opened any
// more.
void APieceMayHaveAnySize(Env* env) {
  const std::string large = std::string(70 << 20, 'l') + "end";
  const auto file = Writable(env, "/large");
  OK(file->Append("head"));
  OK(file->Append(large));
  OK(file->Append("tail"));
  OK(file->Sync());
  OK(file->Close());
  HOLDS(Contents(env, "/large") == "head" + large + "tail");
  OK(env->RemoveFile("/large"));
}

void ReadsEndAtTheEndOfTheFile(Env* env) {
  const std::string data = Bytes(20000, 7);
  OK(WriteStringToFile(env, data, "/r"));
  std::string scratch(data.size() + 100, '\0');
  Slice slice;
  SequentialFile* raw = nullptr;
  OK(env->NewSequentialFile("/r", &raw));
  std::unique_ptr<SequentialFile> sequential(raw);
  OK(sequential->Read(1000, &slice, &scratch[0]));
  HOLDS(slice == Slice(data.data(), 1000));
  OK(sequential->Skip(18500));
  OK(sequential->Read(1000, &slice, &scratch[0]));
  HOLDS(slice == Slice(data.data() + 19500, 500));
  OK(sequential->Read(1000, &slice, &scratch[0]));
  HOLDS(slice.empty());
  OK(env->NewSequentialFile("/r", &raw));
  sequential.reset(raw);
  OK(sequential->Skip(~uint64_t{0}));  // to the end, and no further
  OK(sequential->Read(1000, &slice, &scratch[0]));
  HOLDS(slice.empty());
  auto more = Appendable(env, "/r");
  OK(more->Append("more"));
  OK(more->Close());
  OK(sequential->Read(1000, &slice, &scratch[0]));
  HOLDS(slice == "more");

  RandomAccessFile* random_raw = nullptr;
  OK(env->NewRandomAccessFile("/r", &random_raw));
  const std::unique_ptr<RandomAccessFile> random(random_raw);
  OK(random->Read(12345, 100, &slice, &scratch[0]));
  HOLDS(slice == Slice(data.data() + 12345, 100));
  OK(random->Read(20003, 100, &slice, &scratch[0]));
  HOLDS(slice == "e");
  OK(random->Read(1 << 20, 100, &slice, &scratch[0]));
  HOLDS(slice.empty());
  std::vector<std::thread> readers;
  std::vector<int> wrong(4);
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&, i] {
      char own[64];
      Slice found;
      for (size_t at = 0; at + 64 < data.size(); at += 7) {
        wrong[i] += !random->Read(at, 64, &found, own).ok() || found != Slice(data.data() + at, 64);
      }
    });
  }
  for (auto& reader : readers) reader.join();
  HOLDS(wrong == std::vector<int>(4));
  OK(env->RemoveFile("/r"));
  OK(random->Read(0, 10, &slice, &scratch[0]));
  HOLDS(slice == Slice(data.data(), 10));  // an open file lives on
}

// LevelDB goes on with a manifest whose append failed: what comes behind the gap would be lost.
void AFailedAppendIsNeverForgotten() {
  const auto env = Open("mem:16M");
  auto filler = Writable(env.get(), "/filler");
  auto log = Writable(env.get(), "/log");
  OK(log->Append("first"));
  OK(log->Sync());
  const std::string piece = Bytes(4096, 3);
  Status status;
  while ((status = filler->Append(piece)).ok() && (status = filler->Sync()).ok()) {
  }
  FAILS_WITH(status, "IO error: /filler: the volume is full");
  OK(log->Append(Bytes(10000, 4)));   // buffered
  FAILS_WITH(log->Flush(), "ENOSPC");
  filler.reset();
  OK(env->RemoveFile("/filler"));
  const auto other = Writable(env.get(), "/other");  // there is space again
  OK(other->Append(piece));
  OK(other->Sync());
  FAILS_WITH(log->Append("second"), "IO error: /log: the volume is full");
  FAILS_WITH(log->Flush(), "/log");
  FAILS_WITH(log->Sync(), "/log");
  FAILS_WITH(log->Close(), "/log");
  FAILS_WITH(log->Close(), "/log");
  log.reset();
  HOLDS(Contents(env.get(), "/log") == "first");
}

// -------------------------------------------------------------------------------------------- names

void NamesBehave(Env* env) {
  OK(env->CreateDir("/d"));
  FAILS_WITH(env->CreateDir("/d"), "IO error: /d");
  OK(WriteStringToFile(env, "1", "/d/one"));
  OK(WriteStringToFile(env, "22", "d/two"));  // the leading '/' is optional
  OK(env->CreateDir("/d/sub"));
  HOLDS((Children(env, "/d") == std::set<std::string>{"one", "two", "sub"}));
  HOLDS(env->FileExists("/d/one") && env->FileExists("/d") && !env->FileExists("/d/none"));
  HOLDS(!env->FileExists("/d/one/below") && !env->FileExists("/" + std::string(300, 'n')));
  uint64_t size = 0;
  OK(env->GetFileSize("/d/two", &size));
  HOLDS(size == 2);
  OK(env->RenameFile("/d/two", "/d/one"));  // over
  HOLDS(Contents(env, "/d/one") == "22" && !env->FileExists("/d/two"));
  OK(env->RenameFile("/d/one", "/elsewhere"));
  OK(env->DeleteFile("/elsewhere"));  // its old name
  HOLDS(!env->FileExists("/elsewhere"));
  FAILS_WITH(env->RemoveDir("/d"), "not empty");
  OK(env->RemoveDir("/d/sub"));
  OK(env->DeleteDir("/d"));
  std::string path, again;
  OK(env->GetTestDirectory(&path));
  OK(env->GetTestDirectory(&again));
  HOLDS(path == again && env->FileExists(path));
  OK(env->RemoveDir(path));
}

// Is a block of the file taken by pointer, once all of it was read backwards?
bool IsCopied(RandomAccessFile* file, const std::string& content) {
  constexpr size_t kBlockBytes = 4000;
  std::string scratch(kBlockBytes, '\0');
  Slice block;
  const auto read = [&](size_t at) {
    OK(file->Read(at, kBlockBytes, &block, &scratch[0]));
    HOLDS(block == content.substr(at, kBlockBytes));
    return block.data() != scratch.data();
  };
  for (int turn = 0; turn < 2; ++turn)
    for (size_t at = 0; at < content.size(); at += kBlockBytes) HOLDS(!read(at) || turn > 0);
  for (size_t at = content.size(); at > 0; at -= kBlockBytes) read(at - kBlockBytes);
  OK(file->Read(content.size() - 3, 10, &block, &scratch[0]));
  HOLDS(block == content.substr(content.size() - 3));
  OK(file->Read(content.size() + 3, 10, &block, &scratch[0]));
  HOLDS(block.empty());
  return read(40);
}

void TablesThatAreReadOftenAreReadFromACopyWithinABound() {
  adit::LevelDbEnvOptions options;
  options.table_copies_bytes = 100000;
  const auto env = Open("mem:16M", options);
  const std::string content = Bytes(60000, 5);
  const auto table = [&](const char* name) {
    RandomAccessFile* file = nullptr;
    OK(WriteStringToFile(env.get(), content, "/written"));
    OK(env->RenameFile("/written", name));
    OK(env->NewRandomAccessFile(name, &file));
    return std::unique_ptr<RandomAccessFile>(file);
  };
  auto one = table("/1.ldb");
  auto two = table("/2.sst");
  HOLDS(IsCopied(one.get(), content));
  HOLDS(!IsCopied(two.get(), content));  // no memory is left
  one.reset();
  HOLDS(IsCopied(two.get(), content));  // it is now
  auto log = table("/3.log");
  two.reset();
  HOLDS(!IsCopied(log.get(), content));
  // A table that was written a moment ago is copied at once, for him who opens it first.
  for (const bool is_first : {true, false}) {
    if (is_first) OK(WriteStringToFile(env.get(), content, "/4.ldb"));
    RandomAccessFile* fresh = nullptr;
    OK(env->NewRandomAccessFile("/4.ldb", &fresh));
    char scratch[10];
    Slice block;
    OK(fresh->Read(7, 10, &block, scratch));
    HOLDS(block == content.substr(7, 10) && (block.data() != scratch) == is_first);
    delete fresh;
  }
  // Threads that read while the copy is made see the same bytes.
  one = table("/1.ldb");
  std::atomic<bool> differs{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::string scratch(1000, '\0');
      for (size_t turn = 0; turn < 1000; ++turn) {
        Slice block;
        const size_t at = turn * 59 % 59000;
        const Status status = one->Read(at, scratch.size(), &block, &scratch[0]);
        if (!status.ok() || memcmp(block.data(), content.data() + at, scratch.size()) != 0) differs = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  HOLDS(!differs);
}

void ErrorsAreWhatLevelDBTellsApart(Env* env) {
  SequentialFile* sequential = nullptr;
  RandomAccessFile* random = nullptr;
  WritableFile* writable = nullptr;
  FileLock* lock = nullptr;
  Logger* logger = nullptr;
  std::vector<std::string> names{"dropped"};
  uint64_t size = 1;
  HOLDS(env->NewSequentialFile("/none", &sequential).IsNotFound() && sequential == nullptr);
  HOLDS(env->NewRandomAccessFile("/none", &random).IsNotFound() && random == nullptr);
  HOLDS(env->NewWritableFile("/none/w", &writable).IsNotFound() && writable == nullptr);
  HOLDS(env->NewAppendableFile("/none/w", &writable).IsNotFound() && writable == nullptr);
  HOLDS(env->LockFile("/none/LOCK", &lock).IsNotFound() && lock == nullptr);
  HOLDS(env->NewLogger("/none/LOG", &logger).IsNotFound() && logger == nullptr);
  HOLDS(env->GetChildren("/none", &names).IsNotFound() && names.empty());
  HOLDS(env->RemoveFile("/none").IsNotFound());
  HOLDS(env->RemoveDir("/none").IsNotFound());
  HOLDS(env->CreateDir("/none/d").IsNotFound());
  HOLDS(env->GetFileSize("/none", &size).IsNotFound() && size == 0);
  HOLDS(env->RenameFile("/none", "/other").IsNotFound());
  FAILS_WITH(env->RemoveFile("/none"), "/none");
  OK(WriteStringToFile(env, "x", "/file"));
  HOLDS(env->RemoveDir("/file").IsIOError());
  HOLDS(env->GetChildren("/file", &names).IsIOError());
  HOLDS(env->NewWritableFile("/file/below", &writable).IsIOError());
  HOLDS(env->NewWritableFile("/", &writable).IsIOError());
  HOLDS(env->RemoveFile("/" + std::string(300, 'n')).IsIOError());
  OK(env->RemoveFile("/file"));
  // A failed read has no bytes.
  OK(env->NewSequentialFile("/", &sequential));
  char scratch[10];
  Slice slice("old");
  HOLDS(sequential->Read(10, &slice, scratch).IsIOError() && slice.empty());
  delete sequential;
}

void ALockIsHeldOnceAndFreedByUnlock(Env* env) {
  FileLock* lock = nullptr;
  FileLock* other = nullptr;
  OK(env->LockFile("/LOCK", &lock));
  FAILS_WITH(env->LockFile("/LOCK", &other), "lock /LOCK: already held");
  FAILS_WITH(env->LockFile("LOCK", &other), "already held");  // the same file
  HOLDS(other == nullptr);
  OK(env->LockFile("/LOCK2", &other));
  OK(env->UnlockFile(other));
  OK(env->UnlockFile(lock));
  OK(env->LockFile("/LOCK", &lock));
  OK(env->UnlockFile(lock));
  OK(env->RemoveFile("/LOCK"));
  OK(env->RemoveFile("/LOCK2"));
}

__attribute__((format(printf, 2, 3))) void Say(Logger* logger, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  logger->Logv(format, arguments);
  va_end(arguments);
}

void ALoggerWritesWholeLinesIntoTheVolume(Env* env) {
  Logger* raw = nullptr;
  OK(WriteStringToFile(env, "before\n", "/LOG"));
  OK(env->NewLogger("/LOG", &raw));
  const std::unique_ptr<Logger> logger(raw);
  Say(logger.get(), "number %d", 42);
  Say(logger.get(), "with its newline\n");
  Say(logger.get(), "%s", "");
  const std::string large(100000, 'l');
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 20; ++turn) Say(logger.get(), "<%s>", large.c_str());
    });
  }
  for (auto& thread : threads) thread.join();
  const std::string log = Contents(env, "/LOG");
  HOLDS(log.rfind("before\n", 0) == 0);
  HOLDS(log.find(" number 42\n") != std::string::npos);
  HOLDS(log.find(" with its newline\n2") != std::string::npos);
  HOLDS(std::count(log.begin(), log.end(), '\n') == 1 + 3 + 80);
  size_t whole = 0;
  for (size_t at = 0; (at = log.find("<" + large + ">\n", at)) != std::string::npos; ++at) ++whole;
  HOLDS(whole == 80);
  OK(env->RemoveFile("/LOG"));
}

void ThreadsAndTheClockAreThere(Env* env) {
  struct Turn {
    static void Run(void* done) { static_cast<std::atomic<bool>*>(done)->store(true); }
  };
  std::atomic<bool> scheduled{false}, started{false};
  const uint64_t begin = env->NowMicros();
  env->Schedule(Turn::Run, &scheduled);
  env->StartThread(Turn::Run, &started);
  for (int i = 0; i < 240000 && !(scheduled && started); ++i) env->SleepForMicroseconds(1000);
  HOLDS(scheduled && started);
  env->SleepForMicroseconds(1000);
  HOLDS(env->NowMicros() >= begin + 1000);
}

// ---------------------------------------------------------------------------------------- databases

Options DbOptions(Env* env) {
  Options options;
  options.env = env;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  options.write_buffer_size = 256 << 10;
  options.max_file_size = 1 << 20;
  return options;
}

std::unique_ptr<DB> OpenDb(const Options& options, const std::string& path) {
  DB* db = nullptr;
  OK(DB::Open(options, path, &db));
  return std::unique_ptr<DB>(db);
}

std::string Key(int i) { return "key" + std::to_string(i); }

void Fill(DB* db, int begin, int end, const std::string& value) {
  for (int i = begin; i < end; ++i) {
    WriteOptions options;
    options.sync = i % 64 == 0;
    const Status status = db->Put(options, Key(i), value + std::to_string(i));
    if (!status.ok()) OK(status);
  }
}

void Expect(DB* db, int begin, int end, const std::string& value) {
  std::string found;
  ReadOptions options;
  options.verify_checksums = true;
  for (int i = begin; i < end; ++i) {
    const Status status = db->Get(options, Key(i), &found);
    if (!status.ok()) OK(status);
    if (found != value + std::to_string(i)) HOLDS(!"the value of a key");
  }
  ++claims;
}

int Count(DB* db) {
  ReadOptions options;
  options.verify_checksums = true;
  const std::unique_ptr<Iterator> all(db->NewIterator(options));
  int count = 0;
  for (all->SeekToFirst(); all->Valid(); all->Next()) ++count;
  OK(all->status());
  return count;
}

void DatabasesReopenCompactAndAreRepaired(const std::string& volume) {
  const std::string padding(200, 'p');
  {
    const auto env = Open(volume);
    const Options options = DbOptions(env.get());
    auto one = OpenDb(options, "/one");
    auto two = OpenDb(options, "/two");
    DB* twice = nullptr;
    FAILS_WITH(DB::Open(options, "/one", &twice), "already held");
    std::thread other([&] { Fill(two.get(), 0, 20000, padding + "b"); });
    Fill(one.get(), 0, 50000, padding + "a");
    other.join();
    Expect(one.get(), 0, 50000, padding + "a");
    const Snapshot* snapshot = one->GetSnapshot();
    Fill(one.get(), 0, 50000, padding + "changed");
    WriteBatch batch;
    for (int i = 40000; i < 50000; ++i) batch.Delete(Key(i));
    OK(one->Write(WriteOptions(), &batch));
    one->CompactRange(nullptr, nullptr);
    std::string found;
    ReadOptions before;
    before.snapshot = snapshot;
    OK(one->Get(before, Key(45000), &found));
    HOLDS(found == padding + "a45000");
    one->ReleaseSnapshot(snapshot);
  }
  {
    const auto env = Open(volume);
    Options options = DbOptions(env.get());
    options.reuse_logs = true;  // appends to the log and the manifest
    for (int turn = 0; turn < 3; ++turn) {
      auto one = OpenDb(options, "/one");
      Expect(one.get(), 0, 40000, padding + "changed");
      HOLDS(Count(one.get()) == 40000 + 100 * turn);
      Fill(one.get(), 60000 + 100 * turn, 60100 + 100 * turn, "late");
    }
    const auto names = Children(env.get(), "/one");
    for (const char* name : {"CURRENT", "LOCK", "LOG", "LOG.old"}) HOLDS(names.count(name) == 1);
    HOLDS(!Contents(env.get(), "/one/LOG.old").empty());

    OK(env->RemoveFile("/two/CURRENT"));
    options.create_if_missing = false;
    DB* broken = nullptr;
    FAILS_WITH(DB::Open(options, "/two", &broken), "/two");
    OK(RepairDB("/two", options));
    {
      auto two = OpenDb(options, "/two");
      Expect(two.get(), 0, 20000, padding + "b");
    }
    OK(DestroyDB("/one", options));
    HOLDS(!env->FileExists("/one"));
    // What a repair puts aside stays.
    for (const std::string& name : Children(env.get(), "/two/lost")) OK(env->RemoveFile("/two/lost/" + name));
    OK(env->RemoveDir("/two/lost"));
    OK(DestroyDB("/two", options));
    HOLDS(!env->FileExists("/two"));
  }
}

// Of a database whose volume is full every acknowledged key stays, and it goes on when space comes
// back and it is opened again.
void AFullVolumeLosesNothingThatWasAcknowledged() {
  const auto env = Open("mem:32M");
  const Options options = DbOptions(env.get());
  const std::string padding = Bytes(1000, 9);
  int acknowledged = 0;
  {
    auto db = OpenDb(options, "/db");
    Status status;
    WriteOptions sync;
    sync.sync = true;
    while ((status = db->Put(sync, Key(acknowledged), padding + std::to_string(acknowledged))).ok()) {
      ++acknowledged;
      if (acknowledged == 2000) OK(WriteStringToFile(env.get(), Bytes(8 << 20, 1), "/filler"));
    }
    FAILS_WITH(status, "the volume is full");
    HOLDS(acknowledged > 2000);
    HOLDS(!db->Put(sync, "after", "x").ok());
  }
  OK(env->RemoveFile("/filler"));
  auto db = OpenDb(options, "/db");
  Expect(db.get(), 0, acknowledged, padding);
  Fill(db.get(), acknowledged, acknowledged + 1000, padding);
  Expect(db.get(), 0, acknowledged + 1000, padding);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: plugin_test VOLUME\n");
    return 2;
  }
  const std::string volume = argv[1];
  AVolumeThatCannotBeOpenedIsNamedWithWhatToDo(volume);
  AVolumeWhoseFilesAreStillOpenIsNotClosedUnderThem();
  AForkedChildEndsAndOpensVolumesOfItsOwn();
  AReadOnlyVolumeIsReadAndNothingElse(volume);
  {
    const auto env = Open(volume);
    WritableFilesShowWhatWasFlushed(env.get());
    PiecesOfAnySizeLieInTheirOrder(env.get());
    APieceMayHaveAnySize(env.get());
    ReadsEndAtTheEndOfTheFile(env.get());
    NamesBehave(env.get());
    ErrorsAreWhatLevelDBTellsApart(env.get());
    ALockIsHeldOnceAndFreedByUnlock(env.get());
    ALoggerWritesWholeLinesIntoTheVolume(env.get());
    ThreadsAndTheClockAreThere(env.get());
  }
  TablesThatAreReadOftenAreReadFromACopyWithinABound();
  AFailedAppendIsNeverForgotten();
  AFullVolumeLosesNothingThatWasAcknowledged();
  DatabasesReopenCompactAndAreRepaired(volume);
  const auto env = Open(volume);
  HOLDS(Children(env.get(), "/").empty());
  printf("%d claims hold\n", claims);
  return 0;
}
