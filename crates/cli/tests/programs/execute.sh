# Programs of every day that execute scripts and programs of a directory ($1), beside another one of
# the host ($2). The test compares the output in a volume with that on the host's file system.
cd "$1" || exit 1
printf '#!/bin/sh\necho "script $0 $*"\n' > s; chmod +x s
./s 1 'two words'; sh -c './s 2'; dash -c './s 2b; ./s 2c'; bash -c './s 2d; ./s 2e; echo $?'
env A=1 ./s 3
find . -maxdepth 1 -name s -exec {} 4 \;
find . -maxdepth 1 -name s -execdir ./s 5 {} +
echo 6 7 | xargs -n1 ./s
timeout 20 ./s 8; nice ./s 9; nohup ./s 10 2>/dev/null; setsid -w ./s 11
PATH="$1:$PATH" s 12; PATH="$1:$PATH" bash -c 's 13; command -v s'; PATH="$1:$PATH" env s 14; PATH="$1:$PATH" sh -c 's 14b'
mkdir -p src; cat > src/gen.c <<'C'
#include <stdio.h>
int main(int argc, char **argv) { printf("int made(void) { return %d; }\n", argc); return 0; }
C
cat > src/Makefile <<'M'
out: main.c made.c
	cc -o out main.c made.c && ./out && echo built
made.c: gen
	./gen 1 2 > made.c
gen: gen.c
	cc -o gen gen.c
M
printf '#include <stdio.h>\nint made(void);\nint main(void) { printf("made %%d\\n", made()); return 0; }\n' > src/main.c
make -s -j2 -C src; ./src/out
python3 - <<'P'
import subprocess, os, sys
print(subprocess.run(['./s', 'e']).returncode)
print(subprocess.run([os.getcwd() + '/s', 'f'], cwd='/').returncode)
print(subprocess.run(['./out'], cwd='src', capture_output=True, text=True).stdout)
print(subprocess.check_output('./s g | tr a-z A-Z', shell=True, text=True))
print(subprocess.run(['s', 'h'], env={**os.environ, 'PATH': os.getcwd()}).returncode)
for name in ['./missing', './src', './src/main.c']:
    try: subprocess.run([name])
    except OSError as e: print(name, e.errno)
print(os.spawnvp(os.P_WAIT, './s', ['./s', 'i']), os.system('./s j'), os.access('s', os.X_OK))
P
git init -q repo; cd repo; git config user.name a; git config user.email b
printf '#!/bin/sh\necho hook refuses\nexit 1\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
git commit -q --allow-empty -m x; echo "commit $?"
printf '#!/bin/sh\necho hook passes\n' > .git/hooks/pre-commit
git commit -q --allow-empty -m x; echo "commit $?"
printf '#!/bin/sh\necho alias $1\n' > a; chmod +x a; git config alias.s '!./a'; git s 1
printf '#!/bin/sh\ncat > /dev/null; echo posted\n' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit; git commit -q --allow-empty -m y
cd ..
ln -s /bin/bash py; ./py -c "echo linked \$0"; printf "#!%s/py\necho by \$0 \$*\n" "$1" > p; chmod +x p; ./p 1; printf "#!/bin/sh\necho host script\n" > "$2/hs"; chmod +x "$2/hs"; ln -s "$2/hs" hs; ./hs
printf '#!%s/src/gen\n' "$1" > "$2/foreign"; chmod +x "$2/foreign"; "$2/foreign" 1 2 3; bash -c "$2/foreign 1"
perl -e 'print `./s k`; system("./s", "l"); exec "./s", "m"'
cp s n; ./n 15; mv n o; ./o 16; printf '#!/bin/sh\necho changed\n' > o; ./o; rm o; ./o; echo $?
chmod -x s; ./s; echo $?; sh s 17; chmod +x s; chmod 0 s; ./s; echo $?
(exec ./src/out); exec ./src/out
