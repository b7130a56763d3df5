/* inline.c with the note by which a program of Go is known. */
#include "inline.c"
__asm__(".pushsection .note.go.buildid, \"a\", @note\n"
        ".balign 4\n"
        ".long 4, 4, 4\n"
        ".ascii \"Go\\0\\0none\"\n"
        ".popsection\n");
