#define _GNU_SOURCE
#include "native.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_HEADERS 64	  /* program headers of one file */
#define MOST_ENTRIES 4096 /* of its dynamic section */

/* The parts of an ELF file that lead to its DT_SONAME, of either word size. */
struct file {
	int fd, wide;
	uint64_t headers;
	unsigned count, size;
};

static int read_at(int fd, void *out, size_t size, uint64_t offset)
{
	if (offset > INT64_MAX)
		return -1;
	return pread(fd, out, size, (off_t) offset) == (ssize_t) size ? 0 : -1;
}

static int read_header(struct file *file, struct gs_elf *out)
{
	union {
		unsigned char ident[EI_NIDENT];
		Elf32_Ehdr narrow;
		Elf64_Ehdr wide;
	} header;

	memset(&header, 0, sizeof(header));
	if (pread(file->fd, &header, sizeof(header), 0) < (ssize_t) sizeof(Elf32_Ehdr) ||
	    memcmp(header.ident, ELFMAG, SELFMAG) != 0 || header.ident[EI_DATA] != ELFDATA2LSB)
		return -1;
	file->wide = header.ident[EI_CLASS] == ELFCLASS64;
	file->headers = file->wide ? header.wide.e_phoff : header.narrow.e_phoff;
	file->count = file->wide ? header.wide.e_phnum : header.narrow.e_phnum;
	file->size = file->wide ? header.wide.e_phentsize : header.narrow.e_phentsize;
	out->bits = file->wide ? 64 : 32;
	out->machine = header.narrow.e_machine; /* at the same place in both */
	return file->count > MOST_HEADERS || file->size < (file->wide ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr)) ? -1
														 : 0;
}

/* Program header number n: its type, offset, address and size in the file. */
static int read_program(const struct file *file, unsigned n, Elf64_Phdr *out)
{
	uint64_t at = file->headers + (uint64_t) n * file->size;
	Elf32_Phdr narrow;

	if (file->wide)
		return read_at(file->fd, out, sizeof(*out), at);
	if (read_at(file->fd, &narrow, sizeof(narrow), at) < 0)
		return -1;
	out->p_type = narrow.p_type;
	out->p_offset = narrow.p_offset;
	out->p_vaddr = narrow.p_vaddr;
	out->p_filesz = narrow.p_filesz;
	return 0;
}

/* Where in the file the address is that the loader would map. */
static int find_address(const struct file *file, uint64_t address, uint64_t *offset)
{
	Elf64_Phdr one;

	for (unsigned n = 0; n < file->count; n++) {
		if (read_program(file, n, &one) < 0)
			return -1;
		if (one.p_type == PT_LOAD && address >= one.p_vaddr && address - one.p_vaddr < one.p_filesz) {
			*offset = one.p_offset + (address - one.p_vaddr);
			return 0;
		}
	}
	return -1;
}

/* The dynamic section: offsets of DT_STRTAB (an address) and DT_SONAME (within it); 0 where there is no such. */
static int read_dynamic(const struct file *file, uint64_t *strings, uint64_t *soname)
{
	Elf64_Phdr one;
	unsigned n = 0;

	do
		if (n >= file->count || read_program(file, n, &one) < 0)
			return -1;
	while (n++, one.p_type != PT_DYNAMIC);
	for (uint64_t i = 0; i < MOST_ENTRIES; i++) {
		Elf64_Dyn wide;
		Elf32_Dyn narrow;

		if (file->wide) {
			if (read_at(file->fd, &wide, sizeof(wide), one.p_offset + i * sizeof(wide)) < 0)
				return -1;
		} else {
			if (read_at(file->fd, &narrow, sizeof(narrow), one.p_offset + i * sizeof(narrow)) < 0)
				return -1;
			wide.d_tag = narrow.d_tag;
			wide.d_un.d_val = narrow.d_un.d_val;
		}
		if (wide.d_tag == DT_NULL)
			return 0;
		if (wide.d_tag == DT_STRTAB)
			*strings = wide.d_un.d_val;
		if (wide.d_tag == DT_SONAME)
			*soname = wide.d_un.d_val;
	}
	return -1;
}

/* Word size, machine and SONAME (empty where it has none) of a shared object; 0, or -errno: ENOEXEC where it is none.
 */
int gs_elf(int fd, struct gs_elf *out)
{
	struct file file = {.fd = fd};
	uint64_t strings = 0, soname = 0, offset;
	struct stat st;

	memset(out, 0, sizeof(*out));
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || read_header(&file, out) < 0 || read_dynamic(&file, &strings, &soname) < 0)
		return -ENOEXEC;
	if (!soname)
		return 0;
	if (find_address(&file, strings, &offset) < 0 ||
	    pread(fd, out->soname, sizeof(out->soname) - 1, (off_t) (offset + soname)) <= 0 ||
	    !memchr(out->soname, '\0', sizeof(out->soname) - 1))
		return -ENOEXEC;
	return 0;
}
