// Loads libraries of a directory, and prints what comes of it. The test compares the output in a
// volume with that on the host's file system.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void *opened(const char *path, int flags) {
    dlerror();
    void *handle = dlopen(path, flags);
    const char *error = dlerror();
    printf("%s: %s\n", path, handle ? "loaded" : "not loaded");
    if (handle && error) printf("but %s\n", error);
    if (!handle && !error && !(flags & RTLD_NOLOAD)) printf("without an error\n");
    return handle;
}

static void call(void *handle) {
    int (*next)(void) = (int (*)(void))dlsym(handle, "next");
    printf("next %d\n", next ? next() : -1);
}

static void copy(const char *from, const char *to) {
    char command[9000];
    snprintf(command, sizeof command, "cat %s > %s", from, to);
    if (system(command)) exit(99);
}

static void *same(void *path) {
    return dlopen(path, RTLD_NOW);
}

int main(int argc, char **argv) {
    // The libraries are with the host, `one`, `two`, and `three` whose constructor loads "./one.so".
    char one[4096], two[4096], three[4096], path[5000];
    if (argc != 3) return 99;
    snprintf(one, sizeof one, "%s/one.so", argv[2]);
    snprintf(two, sizeof two, "%s/two.so", argv[2]);
    snprintf(three, sizeof three, "%s/three.so", argv[2]);
    snprintf(path, sizeof path, "%s/one.so", argv[1]);
    if (chdir(argv[1])) return 99;
    copy(one, "one.so");
    copy(three, "three.so");
    if (symlink("one.so", "link.so") || link("one.so", "hard.so") || mkdir("d", 0755)) return 99;
    if (opened(path, RTLD_NOW | RTLD_NOLOAD)) return 98;
    void *first = opened(path, RTLD_NOW);
    call(first);
    printf("again %d\n", opened(path, RTLD_LAZY) == first);
    printf("relative %d\n", opened("./one.so", RTLD_NOW) == first);
    printf("odd %d\n", opened("./d/..//one.so", RTLD_NOW) == first);
    printf("link %d\n", opened("./link.so", RTLD_NOW) == first);
    printf("hard %d\n", opened("./hard.so", RTLD_NOW) == first);
    printf("no load %d\n", opened(path, RTLD_NOW | RTLD_NOLOAD) == first);
    call(first);
    printf("lowest number %d\n", dup(0));
    opened("./missing.so", RTLD_NOW);
    opened("./d", RTLD_NOW);
    close(open("./empty.so", O_CREAT | O_WRONLY, 0755));
    opened("./empty.so", RTLD_NOW);
    // A constructor that loads another one.
    void *third = opened("./three.so", RTLD_NOW | RTLD_GLOBAL);
    call(third);
    call(first);
    // Replaced while it is loaded: the path is still that of the loaded one.
    copy(two, "new.so");
    if (rename("new.so", "one.so")) return 99;
    printf("replaced %d\n", opened(path, RTLD_NOW) == first);
    // Another file by another path.
    void *second = opened("./d/../one.so", RTLD_NOW);
    printf("new %d\n", second != first);
    call(second);
    call(first);
    // A child of fork has what is loaded.
    fflush(stdout);
    if (fork() == 0) {
        printf("in the child %d\n", opened("./hard.so", RTLD_NOW) == first);
        call(first);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    // Threads that load the same one get the same.
    copy(one, "shared.so");
    pthread_t threads[8];
    void *handles[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, same, "./shared.so");
    for (int i = 0; i < 8; i++) pthread_join(threads[i], &handles[i]);
    for (int i = 1; i < 8; i++)
        if (!handles[i] || handles[i] != handles[0]) printf("another handle\n");
    for (int i = 0; i < 8; i++) dlclose(handles[i]);
    printf("unloaded %d\n", opened("./shared.so", RTLD_NOW | RTLD_NOLOAD) == NULL);
    // Unloaded and changed in its place: what is there now.
    copy(two, "shared.so");
    void *changed = opened("./shared.so", RTLD_NOW);
    call(changed);
    // One that needs another one, which lies below it.
    char four[4096], five[4096];
    snprintf(four, sizeof four, "%s/four.so", argv[2]);
    snprintf(five, sizeof five, "%s/lib/libfive.so", argv[2]);
    if (mkdir("lib", 0755)) return 99;
    copy(four, "four.so");
    copy(five, "lib/libfive.so");
    void *fourth = opened("./four.so", RTLD_NOW);
    call(fourth);
    void *fifth = opened("./lib/libfive.so", RTLD_NOW | RTLD_NOLOAD);
    if (!fourth || !fifth) return 97;
    call(fifth);
    dlclose(fifth);
    dlclose(fourth);
    opened("./lib/libfive.so", RTLD_NOW | RTLD_NOLOAD);
    // A hundred libraries, one after the other.
    for (int i = 0; i < 100; i++) {
        snprintf(path, sizeof path, "./l%d.so", i);
        copy(one, path);
        void *handle = dlopen(path, RTLD_NOW);
        if (!handle || dlclose(handle)) printf("%s: %s\n", path, dlerror());
    }
    return 0;
}
