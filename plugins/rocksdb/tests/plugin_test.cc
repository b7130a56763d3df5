// What RocksDB expects of a FileSystem, asked of the plugin as a program finds it: by
// adit://ADDRESS.
//
//   plugin_test ADDRESS      the volume must be formatted and empty, of 1 GiB or more
//
// Exit status 0 and "N claims hold", or the first claim that doesn't.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../bench/open_db.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/file_system.h"
#include "rocksdb/options.h"
#include "rocksdb/table.h"
#include "rocksdb/utilities/checkpoint.h"

using namespace rocksdb;

namespace {

int claims = 0;

#define HOLDS(condition)                                                          \
  do {                                                                            \
    ++claims;                                                                     \
    if (!(condition)) {                                                           \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                    \
    }                                                                             \
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

const IOOptions kIO;
const FileOptions kFile;

std::set<std::string> Children(FileSystem* fs, const std::string& path) {
  std::vector<std::string> names;
  OK(fs->GetChildren(path, kIO, &names, nullptr));
  return std::set<std::string>(names.begin(), names.end());
}

std::string Contents(FileSystem* fs, const std::string& path) {
  std::string data;
  OK(ReadFileToString(fs, path, &data));
  return data;
}

void WritableFilesAppendTruncateAndKnowTheirSize(FileSystem* fs) {
  std::unique_ptr<FSWritableFile> file;
  OK(fs->NewWritableFile("/w", kFile, &file, nullptr));
  OK(file->Append("hello ", kIO, nullptr));
  OK(file->Append("world", kIO, DataVerificationInfo(), nullptr));
  HOLDS(file->GetFileSize(kIO, nullptr) == 11);
  HOLDS(Contents(fs, "/w") == "hello world");  // visible without a sync
  OK(file->PositionedAppend("W", 6, kIO, nullptr));
  HOLDS(Contents(fs, "/w") == "hello World");
  OK(file->Truncate(5, kIO, nullptr));
  OK(file->Append("!", kIO, nullptr));
  OK(file->Flush(kIO, nullptr));
  OK(file->Sync(kIO, nullptr));
  OK(file->Fsync(kIO, nullptr));
  OK(file->RangeSync(0, 6, kIO, nullptr));
  HOLDS(file->IsSyncThreadSafe());
  OK(file->Close(kIO, nullptr));
  HOLDS(Contents(fs, "/w") == "hello!");
  uint64_t size = 0;
  OK(fs->GetFileSize("/w", kIO, &size, nullptr));
  HOLDS(size == 6);

  OK(fs->ReopenWritableFile("/w", kFile, &file, nullptr));
  HOLDS(file->GetFileSize(kIO, nullptr) == 6);
  OK(file->Append("?", kIO, nullptr));
  OK(file->Close(kIO, nullptr));
  HOLDS(Contents(fs, "/w") == "hello!?");
  OK(fs->NewWritableFile("/w", kFile, &file, nullptr));
  OK(file->Close(kIO, nullptr));
  HOLDS(Contents(fs, "/w").empty());
  OK(fs->ReopenWritableFile("/made-by-reopen", kFile, &file, nullptr));
  file.reset();
  OK(fs->DeleteFile("/made-by-reopen", kIO, nullptr));
}

// RocksDB writes a value in one piece, of any size. A server refused appends of more than 64 MiB: no
// table could be made of such a value, which was in the log, and the DB couldn't be opened any more.
void APieceMayHaveAnySize(FileSystem* fs) {
  const std::string large = std::string(70 << 20, 'l') + "end";
  std::unique_ptr<FSWritableFile> file;
  OK(fs->NewWritableFile("/large", kFile, &file, nullptr));
  OK(file->Append("head", kIO, nullptr));
  OK(file->Append(large, kIO, nullptr));
  OK(file->Append("tail", kIO, nullptr));
  OK(file->Sync(kIO, nullptr));
  OK(file->Close(kIO, nullptr));
  HOLDS(Contents(fs, "/large") == "head" + large + "tail");
  OK(fs->DeleteFile("/large", kIO, nullptr));
}

void PreallocationIsNotSeenInSizesAndGivenBackAtClose(FileSystem* fs) {
  for (const bool keep_size : {true, false}) {
    FileOptions options;
    options.fallocate_with_keep_size = keep_size;
    std::unique_ptr<FSWritableFile> file;
    OK(fs->NewWritableFile("/pre", options, &file, nullptr));
    uint64_t free_before = 0;
    OK(fs->GetFreeSpace("/", kIO, &free_before, nullptr));
    file->SetPreallocationBlockSize(16 << 20);
    file->PrepareWrite(0, 100, kIO, nullptr);
    size_t block = 0;
    size_t last = 0;
    file->GetPreallocationStatus(&block, &last);
    HOLDS(block == (16 << 20) && last == 1);
    uint64_t free_allocated = 0;
    OK(fs->GetFreeSpace("/", kIO, &free_allocated, nullptr));
    HOLDS(free_allocated + (15 << 20) < free_before);
    OK(file->Append(std::string(100, 'x'), kIO, nullptr));
    HOLDS(file->GetFileSize(kIO, nullptr) == 100);
    OK(file->Sync(kIO, nullptr));
    OK(file->Close(kIO, nullptr));
    uint64_t size = 0;
    OK(fs->GetFileSize("/pre", kIO, &size, nullptr));
    HOLDS(size == 100);
    HOLDS(Contents(fs, "/pre") == std::string(100, 'x'));
    uint64_t free_after = 0;
    OK(fs->GetFreeSpace("/", kIO, &free_after, nullptr));
    HOLDS(free_after + (4 << 20) > free_before);
    OK(fs->DeleteFile("/pre", kIO, nullptr));
  }
}

void ReusedLogsAreOverwrittenFromTheStart(FileSystem* fs) {
  OK(WriteStringToFile(fs, "old content of a log", "/log.old"));
  std::unique_ptr<FSWritableFile> file;
  OK(fs->ReuseWritableFile("/log.new", "/log.old", kFile, &file, nullptr));
  HOLDS(file->GetFileSize(kIO, nullptr) == 0);
  OK(file->Append("new", kIO, nullptr));
  OK(file->Close(kIO, nullptr));
  HOLDS(Contents(fs, "/log.new") == "new content of a log");
  HOLDS(fs->FileExists("/log.old", kIO, nullptr).IsNotFound());
  OK(fs->DeleteFile("/log.new", kIO, nullptr));
}

void ReadsEndAtTheEndOfTheFile(FileSystem* fs) {
  std::string data;
  for (int i = 0; i < 20000; ++i) data += static_cast<char>('a' + i * 7 % 26);
  OK(WriteStringToFile(fs, data, "/r", true));
  std::string scratch(data.size() + 100, '\0');
  Slice slice;

  std::unique_ptr<FSSequentialFile> sequential;
  OK(fs->NewSequentialFile("/r", kFile, &sequential, nullptr));
  OK(sequential->Read(1000, kIO, &slice, &scratch[0], nullptr));
  HOLDS(slice == Slice(data.data(), 1000));
  OK(sequential->Skip(18500));
  OK(sequential->Read(1000, kIO, &slice, &scratch[0], nullptr));
  HOLDS(slice == Slice(data.data() + 19500, 500));
  OK(sequential->Read(1000, kIO, &slice, &scratch[0], nullptr));
  HOLDS(slice.empty());

  std::unique_ptr<FSRandomAccessFile> random;
  OK(fs->NewRandomAccessFile("/r", kFile, &random, nullptr));
  HOLDS(random->Prefetch(0, 8192, kIO, nullptr).IsNotSupported());  // so that RocksDB reads ahead itself
  random->Hint(FSRandomAccessFile::kRandom);
  OK(random->Read(12345, 100, kIO, &slice, &scratch[0], nullptr));
  HOLDS(slice == Slice(data.data() + 12345, 100));
  OK(random->Read(19999, 100, kIO, &slice, &scratch[0], nullptr));
  HOLDS(slice.size() == 1);
  OK(random->Read(1 << 20, 100, kIO, &slice, &scratch[0], nullptr));
  HOLDS(slice.empty());

  std::vector<FSReadRequest> requests(70);
  std::vector<std::string> buffers(requests.size(), std::string(500, '\0'));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].offset = i * 300;
    requests[i].len = 500;
    requests[i].scratch = &buffers[i][0];
  }
  OK(random->MultiRead(requests.data(), requests.size(), kIO, nullptr));
  for (auto& request : requests) {
    OK(request.status);
    const size_t expected = request.offset >= data.size() ? 0 : std::min<size_t>(500, data.size() - request.offset);
    HOLDS(request.result == Slice(data.data() + request.offset, expected));
  }

  FSReadRequest request;
  request.offset = 5000;
  request.len = 100;
  request.scratch = &scratch[0];
  std::string seen;
  void* handle = nullptr;
  IOHandleDeleter deleter;
  OK(random->ReadAsync(
      request, kIO,
      [&](const FSReadRequest& done, void* argument) {
        OK(done.status);
        *static_cast<std::string*>(argument) = done.result.ToString();
      },
      &seen, &handle, &deleter, nullptr));
  std::vector<void*> handles{handle};
  OK(fs->Poll(handles, 1));
  HOLDS(seen == data.substr(5000, 100));
  deleter(handle);

  char id[64];
  char other[64];
  const size_t id_len = random->GetUniqueId(id, sizeof(id));
  HOLDS(id_len > 2);
  std::unique_ptr<FSRandomAccessFile> again;
  OK(fs->NewRandomAccessFile("/r", kFile, &again, nullptr));
  HOLDS(again->GetUniqueId(other, sizeof(other)) == id_len && Slice(id, id_len) == Slice(other, id_len));
  OK(fs->DeleteFile("/r", kIO, nullptr));
  OK(random->Read(0, 10, kIO, &slice, &scratch[0], nullptr));
  HOLDS(slice == Slice(data.data(), 10));  // an open file lives on
}

void RandomReadWriteFilesKeepWhatIsAround(FileSystem* fs) {
  std::unique_ptr<FSRandomRWFile> file;
  HOLDS(fs->NewRandomRWFile("/rw", kFile, &file, nullptr).IsPathNotFound());
  OK(WriteStringToFile(fs, "0123456789", "/rw"));
  OK(fs->NewRandomRWFile("/rw", kFile, &file, nullptr));
  OK(file->Write(3, "abc", kIO, nullptr));
  char scratch[20];
  Slice slice;
  OK(file->Read(2, 5, kIO, &slice, scratch, nullptr));
  HOLDS(slice == "2abc6");
  OK(file->Sync(kIO, nullptr));
  OK(file->Fsync(kIO, nullptr));
  OK(file->Close(kIO, nullptr));
  OK(fs->DeleteFile("/rw", kIO, nullptr));
}

void DirectFilesAreCoherentWithTheCache(FileSystem* fs) {
  FileOptions direct;
  direct.use_direct_reads = true;
  direct.use_direct_writes = true;
  alignas(4096) static char page[4096];
  std::unique_ptr<FSWritableFile> file;
  OK(fs->NewWritableFile("/direct", direct, &file, nullptr));
  HOLDS(file->use_direct_io());
  for (int i = 0; i < 3; ++i) {
    std::fill(page, page + sizeof(page), static_cast<char>('a' + i));
    OK(file->PositionedAppend(Slice(page, sizeof(page)), 4096 * i, kIO, nullptr));
  }
  OK(file->Truncate(10000, kIO, nullptr));
  OK(file->Close(kIO, nullptr));
  HOLDS(Contents(fs, "/direct") == std::string(4096, 'a') + std::string(4096, 'b') + std::string(10000 - 8192, 'c'));
  std::unique_ptr<FSRandomAccessFile> random;
  OK(fs->NewRandomAccessFile("/direct", direct, &random, nullptr));
  HOLDS(random->use_direct_io() && random->GetRequiredBufferAlignment() == 4096);
  Slice slice;
  OK(random->Read(8192, 4096, kIO, &slice, page, nullptr));
  HOLDS(slice == std::string(10000 - 8192, 'c'));
  OK(fs->DeleteFile("/direct", kIO, nullptr));
}

void NamesBehave(FileSystem* fs) {
  OK(fs->CreateDir("/d", kIO, nullptr));
  HOLDS(!fs->CreateDir("/d", kIO, nullptr).ok());
  OK(fs->CreateDirIfMissing("/d", kIO, nullptr));
  OK(WriteStringToFile(fs, "1", "/d/one"));
  OK(WriteStringToFile(fs, "22", "/d/two"));
  HOLDS(!fs->CreateDirIfMissing("/d/one", kIO, nullptr).ok());
  OK(fs->CreateDir("/d/sub", kIO, nullptr));
  HOLDS((Children(fs, "/d") == std::set<std::string>{"one", "two", "sub"}));
  std::vector<FileAttributes> attributes;
  OK(fs->GetChildrenFileAttributes("/d", kIO, &attributes, nullptr));
  HOLDS(attributes.size() == 3);
  for (auto& child : attributes) HOLDS(child.name != "two" || child.size_bytes == 2);
  bool yes = false;
  OK(fs->IsDirectory("/d", kIO, &yes, nullptr));
  HOLDS(yes);
  OK(fs->IsDirectory("/d/one", kIO, &yes, nullptr));
  HOLDS(!yes);

  OK(fs->LinkFile("/d/one", "/d/link", kIO, nullptr));
  uint64_t links = 0;
  OK(fs->NumFileLinks("/d/one", kIO, &links, nullptr));
  HOLDS(links == 2);
  OK(fs->AreFilesSame("/d/one", "/d/link", kIO, &yes, nullptr));
  HOLDS(yes);
  OK(fs->AreFilesSame("/d/one", "/d/two", kIO, &yes, nullptr));
  HOLDS(!yes);
  OK(fs->RenameFile("/d/two", "/d/one", kIO, nullptr));  // over
  HOLDS(Contents(fs, "/d/one") == "22" && Contents(fs, "/d/link") == "1");
  OK(fs->RenameFile("/d/link", "/elsewhere", kIO, nullptr));
  OK(fs->Truncate("/elsewhere", 0, kIO, nullptr));
  HOLDS(Contents(fs, "/elsewhere").empty());
  uint64_t seconds = 0;
  OK(fs->GetFileModificationTime("/elsewhere", kIO, &seconds, nullptr));
  HOLDS(seconds + 100 > static_cast<uint64_t>(time(nullptr)) && seconds < static_cast<uint64_t>(time(nullptr)) + 100);

  std::unique_ptr<FSDirectory> directory;
  OK(fs->NewDirectory("/d", kIO, &directory, nullptr));
  OK(directory->Fsync(kIO, nullptr));
  OK(directory->FsyncWithDirOptions(kIO, nullptr, DirFsyncOptions(DirFsyncOptions::kNewFileSynced)));
  OK(directory->FsyncWithDirOptions(kIO, nullptr, DirFsyncOptions("/d/one")));
  OK(directory->Close(kIO, nullptr));
  directory.reset();

  HOLDS(!fs->DeleteDir("/d", kIO, nullptr).ok());  // not empty
  OK(fs->DeleteFile("/d/one", kIO, nullptr));
  OK(fs->DeleteDir("/d/sub", kIO, nullptr));
  OK(fs->DeleteDir("/d", kIO, nullptr));
  OK(fs->DeleteFile("/elsewhere", kIO, nullptr));
  std::string path;
  OK(fs->GetAbsolutePath("x/y", kIO, &path, nullptr));
  HOLDS(path == "/x/y");
  OK(fs->GetTestDirectory(kIO, &path, nullptr));
  OK(fs->FileExists(path, kIO, nullptr));
  OK(fs->DeleteDir(path, kIO, nullptr));
}

void ErrorsAreWhatRocksDBTellsApart(FileSystem* fs) {
  std::unique_ptr<FSSequentialFile> sequential;
  std::unique_ptr<FSRandomAccessFile> random;
  std::unique_ptr<FSDirectory> directory;
  std::unique_ptr<MemoryMappedFileBuffer> mapped;
  std::vector<std::string> names;
  uint64_t size = 0;
  HOLDS(fs->FileExists("/none", kIO, nullptr).IsNotFound());
  HOLDS(fs->FileExists("/none/below", kIO, nullptr).IsNotFound());
  HOLDS(fs->FileExists("/" + std::string(300, 'n'), kIO, nullptr).IsNotFound());
  HOLDS(fs->GetChildren("/none", kIO, &names, nullptr).IsNotFound());
  HOLDS(fs->NewSequentialFile("/none", kFile, &sequential, nullptr).IsPathNotFound());
  HOLDS(fs->NewRandomAccessFile("/none", kFile, &random, nullptr).IsPathNotFound());
  HOLDS(fs->NewDirectory("/none", kIO, &directory, nullptr).IsPathNotFound());
  HOLDS(fs->DeleteFile("/none", kIO, nullptr).IsPathNotFound());
  HOLDS(fs->GetFileSize("/none", kIO, &size, nullptr).IsPathNotFound());
  HOLDS(fs->RenameFile("/none", "/other", kIO, nullptr).IsPathNotFound());
  HOLDS(fs->NewMemoryMappedFileBuffer("/none", &mapped).IsNotSupported());
  const std::string message = fs->DeleteFile("/none", kIO, nullptr).ToString();
  HOLDS(message.find("/none") != std::string::npos);

  OK(WriteStringToFile(fs, "x", "/file"));
  HOLDS(!fs->NewDirectory("/file", kIO, &directory, nullptr).ok());
  HOLDS(!fs->DeleteDir("/file", kIO, nullptr).ok());
  HOLDS(fs->FileExists("/file/below", kIO, nullptr).IsNotFound());
  OK(fs->DeleteFile("/file", kIO, nullptr));
}

// A failed read of MultiRead or ReadAsync had the words of whatever had failed before it in the
// same thread.
void FailedReadsHaveTheirOwnWords(FileSystem* fs) {
  OK(fs->CreateDir("/unreadable", kIO, nullptr));
  std::unique_ptr<FSRandomAccessFile> file;
  OK(fs->NewRandomAccessFile("/unreadable", kFile, &file, nullptr));
  const auto words_are_right = [](const Status& status) {
    const std::string words = status.ToString();
    return !status.ok() && words.find("irectory") != std::string::npos && words.find("/none") == std::string::npos;
  };
  char scratch[20];
  FSReadRequest requests[2];
  for (size_t i = 0; i < 2; ++i) {
    requests[i].offset = 0;
    requests[i].len = 10;
    requests[i].scratch = scratch + 10 * i;
  }
  HOLDS(!fs->DeleteFile("/none", kIO, nullptr).ok());
  OK(file->MultiRead(requests, 2, kIO, nullptr));
  HOLDS(words_are_right(requests[0].status));
  HOLDS(words_are_right(requests[1].status));

  Status seen;
  void* handle = nullptr;
  IOHandleDeleter deleter;
  OK(file->ReadAsync(
      requests[0], kIO, [&](const FSReadRequest& done, void*) { seen = done.status; }, nullptr, &handle, &deleter,
      nullptr));
  HOLDS(!fs->DeleteFile("/none", kIO, nullptr).ok());
  std::vector<void*> handles{handle};
  OK(fs->Poll(handles, 1));
  HOLDS(words_are_right(seen));
  deleter(handle);
  file.reset();
  OK(fs->DeleteDir("/unreadable", kIO, nullptr));
}

// What isn't a size was taken for its beginning, for 2^64 - 1 GiB, or for the default.
void TheCacheIsBoundedAsWasSaidOrNotAtAll(const std::string& uri) {
  std::shared_ptr<FileSystem> fs;
  for (const char* wrong : {"64Mfoo", "-1G", "1X", " 64M", "64 M", "M", "0", "99999999999999999999", "99999999T"}) {
    setenv("ADIT_CACHE", wrong, 1);
    const Status status = FileSystem::CreateFromString(ConfigOptions(), uri, &fs);
    HOLDS(!status.ok() && status.ToString().find("ADIT_CACHE") != std::string::npos);
  }
  for (const char* right : {"64M", "65536k", "67108864", "1G", ""}) {
    setenv("ADIT_CACHE", right, 1);
    OK(FileSystem::CreateFromString(ConfigOptions(), uri, &fs));
    fs.reset();
  }
  unsetenv("ADIT_CACHE");
}

// Opening failed with EBUSY while another thread's last reference was closing the volume.
void AVolumeIsReopenedWhileItCloses(const std::string& uri) {
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 25; ++turn) {
        std::shared_ptr<FileSystem> fs;
        const Status status = FileSystem::CreateFromString(ConfigOptions(), uri, &fs);
        if (!status.ok() && failures++ == 0) fprintf(stderr, "%s\n", status.ToString().c_str());
        if (status.ok() && !fs->FileExists("/", kIO, nullptr).ok()) ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  HOLDS(failures == 0);
}

// A volume that an open file kept open could never be opened again by this process.
void AVolumeThatCouldNotBeClosedIsFoundAgain(const std::string& uri) {
  std::shared_ptr<FileSystem> fs;
  OK(FileSystem::CreateFromString(ConfigOptions(), uri, &fs));
  std::unique_ptr<FSWritableFile> file;
  OK(fs->NewWritableFile("/forgotten", kFile, &file, nullptr));
  OK(file->Append("kept", kIO, nullptr));
  fs.reset();
  OK(FileSystem::CreateFromString(ConfigOptions(), uri, &fs));
  HOLDS(Contents(fs.get(), "/forgotten") == "kept");
  file.reset();
  OK(fs->DeleteFile("/forgotten", kIO, nullptr));
  fs.reset();
}

// A child that was forked while another thread opened a volume waited for that thread's mutex for
// ever when it ended; and any child was given its parent's volume, which is none of its own.
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
  std::shared_ptr<FileSystem> fs;
  OK(FileSystem::CreateFromString(ConfigOptions(), "adit://mem:64M", &fs));
  Status refused;
  std::thread opening([&] {
    std::shared_ptr<FileSystem> none;
    refused = FileSystem::CreateFromString(ConfigOptions(), "adit://unix:" + path, &none);
  });
  const int server = accept(silent, nullptr, nullptr);  // the thread waits for an answer
  HOLDS(server >= 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);  // ends it where it hangs
    std::shared_ptr<FileSystem> own;
    const Status opened = FileSystem::CreateFromString(ConfigOptions(), "adit://mem:64M", &own);
    exit(opened.ok() && own->FileExists("/", kIO, nullptr).ok() ? 0 : 1);
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

void ALockIsHeldOnceAndFreedByUnlock(FileSystem* fs, FileSystem* second) {
  FileLock* lock = nullptr;
  FileLock* other = nullptr;
  OK(fs->LockFile("/LOCK", kIO, &lock, nullptr));
  HOLDS(!fs->LockFile("/LOCK", kIO, &other, nullptr).ok() && other == nullptr);
  HOLDS(second->LockFile("/LOCK", kIO, &other, nullptr).IsBusy());
  OK(fs->UnlockFile(lock, kIO, nullptr));
  OK(second->LockFile("/LOCK", kIO, &other, nullptr));
  OK(second->UnlockFile(other, kIO, nullptr));
  OK(fs->DeleteFile("/LOCK", kIO, nullptr));
}

void NoSpaceIsToldAndSpaceComesBack(FileSystem* fs) {
  uint64_t free_before = 0;
  uint64_t free_after = 0;
  OK(fs->GetFreeSpace("/", kIO, &free_before, nullptr));
  std::unique_ptr<FSWritableFile> file;
  OK(fs->NewWritableFile("/huge", kFile, &file, nullptr));
  HOLDS(file->Allocate(0, free_before + (1 << 30), kIO, nullptr).IsNoSpace());
  OK(file->Close(kIO, nullptr));
  OK(fs->DeleteFile("/huge", kIO, nullptr));
  OK(fs->GetFreeSpace("/", kIO, &free_after, nullptr));
  HOLDS(free_after + (64 << 20) > free_before);
}

Options DbOptions(Env* env) {
  Options options;
  options.env = env;
  options.create_if_missing = true;
  options.write_buffer_size = 256 << 10;
  options.compression = kNoCompression;
  options.recycle_log_file_num = 2;
  return options;
}

std::unique_ptr<DB> Open(const Options& options, const std::string& path) {
  std::unique_ptr<DB> db;
  OK(OpenDb(options, path, &db));
  return db;
}

void Fill(DB* db, int begin, int end, const std::string& value) {
  for (int i = begin; i < end; ++i) {
    WriteOptions options;
    options.sync = i % 64 == 0;
    const Status status = db->Put(options, "key" + std::to_string(i), value + std::to_string(i));
    if (!status.ok()) OK(status);
  }
}

void Expect(DB* db, int begin, int end, const std::string& value) {
  std::string found;
  for (int i = begin; i < end; ++i) {
    const Status status = db->Get(ReadOptions(), "key" + std::to_string(i), &found);
    if (!status.ok()) OK(status);
    if (found != value + std::to_string(i)) HOLDS(!"the value of a key");
  }
  ++claims;
}

void TwoDatabasesReopenAndAreCheckpointed(Env* env) {
  const Options options = DbOptions(env);
  const std::string padding(200, 'p');
  {
    auto one = Open(options, "/one");
    auto two = Open(options, "/two");
    std::unique_ptr<DB> twice;
    HOLDS(!OpenDb(options, "/one", &twice).ok());  // the lock
    Fill(one.get(), 0, 10000, padding + "a");
    Fill(two.get(), 0, 5000, padding + "b");
    OK(one->Flush(FlushOptions()));
    OK(one->CompactRange(CompactRangeOptions(), nullptr, nullptr));
    Expect(one.get(), 0, 10000, padding + "a");

    Checkpoint* raw = nullptr;
    OK(Checkpoint::Create(one.get(), &raw));
    std::unique_ptr<Checkpoint> checkpoint(raw);
    OK(checkpoint->CreateCheckpoint("/one.checkpoint"));
    Fill(one.get(), 0, 10000, padding + "changed");
  }
  {
    auto one = Open(options, "/one");
    auto two = Open(options, "/two");
    Expect(one.get(), 0, 10000, padding + "changed");
    Expect(two.get(), 0, 5000, padding + "b");
    auto checkpoint = Open(options, "/one.checkpoint");
    Expect(checkpoint.get(), 0, 10000, padding + "a");

    ReadOptions scan;
    scan.async_io = true;
    scan.readahead_size = 64 << 10;
    std::unique_ptr<Iterator> iterator(one->NewIterator(scan));
    int count = 0;
    for (iterator->SeekToFirst(); iterator->Valid(); iterator->Next()) ++count;
    OK(iterator->status());
    HOLDS(count == 10000);
    OK(one->VerifyChecksum());
  }
  Options mapped = options;
  mapped.allow_mmap_reads = true;
  mapped.allow_mmap_writes = true;
  {
    auto two = Open(mapped, "/two");
    Fill(two.get(), 5000, 6000, padding + "b");
    OK(two->Flush(FlushOptions()));
    Expect(two.get(), 0, 6000, padding + "b");
    OK(two->VerifyChecksum());
  }
  Options direct = options;
  direct.use_direct_reads = true;
  direct.use_direct_io_for_flush_and_compaction = true;
  {
    auto one = Open(direct, "/one");
    Fill(one.get(), 5000, 15000, padding + "direct");
    OK(one->CompactRange(CompactRangeOptions(), nullptr, nullptr));
    Expect(one.get(), 0, 5000, padding + "changed");
    Expect(one.get(), 5000, 15000, padding + "direct");
  }
  for (const char* path : {"/one", "/two", "/one.checkpoint"}) {
    HOLDS(!Children(env->GetFileSystem().get(), path).empty());
    OK(DestroyDB(path, options));
    HOLDS(env->FileExists(path).IsNotFound());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: plugin_test ADDRESS\n");
    return 2;
  }
  const std::string uri = std::string("adit://") + argv[1];
  std::shared_ptr<FileSystem> fs;
  HOLDS(!FileSystem::CreateFromString(ConfigOptions(), "adit:///no/such/volume", &fs).ok());
  TheCacheIsBoundedAsWasSaidOrNotAtAll(uri);
  AVolumeIsReopenedWhileItCloses(uri);
  AVolumeThatCouldNotBeClosedIsFoundAgain(uri);
  AForkedChildEndsAndOpensVolumesOfItsOwn();
  OK(FileSystem::CreateFromString(ConfigOptions(), uri, &fs));
  {
    std::shared_ptr<FileSystem> second;
    OK(FileSystem::CreateFromString(ConfigOptions(), uri, &second));  // the same volume, opened once
    WritableFilesAppendTruncateAndKnowTheirSize(fs.get());
    APieceMayHaveAnySize(fs.get());
    PreallocationIsNotSeenInSizesAndGivenBackAtClose(fs.get());
    ReusedLogsAreOverwrittenFromTheStart(fs.get());
    ReadsEndAtTheEndOfTheFile(fs.get());
    RandomReadWriteFilesKeepWhatIsAround(fs.get());
    DirectFilesAreCoherentWithTheCache(fs.get());
    NamesBehave(fs.get());
    ErrorsAreWhatRocksDBTellsApart(fs.get());
    FailedReadsHaveTheirOwnWords(fs.get());
    ALockIsHeldOnceAndFreedByUnlock(fs.get(), second.get());
    NoSpaceIsToldAndSpaceComesBack(fs.get());
  }
  {
    std::unique_ptr<Env> env = NewCompositeEnv(fs);
    TwoDatabasesReopenAndAreCheckpointed(env.get());
  }
  HOLDS(Children(fs.get(), "/") == std::set<std::string>{"w"});
  OK(fs->DeleteFile("/w", kIO, nullptr));
  fs.reset();
  OK(FileSystem::CreateFromString(ConfigOptions(), uri, &fs));  // closed, and opened again
  HOLDS(Children(fs.get(), "/").empty());
  printf("%d claims hold\n", claims);
  return 0;
}
