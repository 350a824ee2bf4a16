//! Creates and checks sealed memfds, the form in which processes share extents.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

use super::{Error, PageSize};

/// `f_type` of hugetlbfs, from the kernel's `magic.h`.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Creates a memfd of `length` bytes in pages of `page`, sealed against shrinking, growing and
/// further sealing. No page is allocated yet; the process that first accesses a page is charged for it
/// (see [`super::Region::populate`]).
///
/// # Errors
/// [`Error::BadLength`] if `length` is not a positive multiple of the page size; [`Error::Call`] with
/// `ENOMEM` and others of `memfd_create`, for huge pages `ENODEV` or `EINVAL` without kernel support.
pub fn create(name: &str, length: u64, page: PageSize) -> Result<OwnedFd, Error> {
    check_length(length, page)?;
    let huge = match page {
        PageSize::Base => MemfdFlags::empty(),
        PageSize::Huge2Mi => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        PageSize::Huge1Gi => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
    let fd = rustix::fs::memfd_create(name, flags).map_err(Error::call("memfd_create"))?;
    rustix::fs::ftruncate(&fd, length).map_err(Error::call("ftruncate"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).map_err(Error::call("sealing"))?;
    Ok(fd)
}

/// Checks that a descriptor from another process is an extent as declared: sealed against
/// shrinking and growing, of exactly `length` bytes, backed by pages of `page`.
///
/// # Errors
/// [`Error::BadLength`], [`Error::NotSealed`], [`Error::WrongLength`] or [`Error::WrongPageSize`];
/// [`Error::Call`] if `fstat` or `fstatfs` fails.
pub fn check(fd: BorrowedFd<'_>, length: u64, page: PageSize) -> Result<(), Error> {
    check_length(length, page)?;
    // Fails for anything but memfds and files of tmpfs.
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| Error::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(Error::NotSealed);
    }
    let stat = rustix::fs::fstat(fd).map_err(Error::call("fstat"))?;
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    if found != length {
        return Err(Error::WrongLength {
            declared: length,
            found,
        });
    }
    let found = page_bytes(fd)?;
    if found != page.bytes() {
        return Err(Error::WrongPageSize {
            declared: page.bytes(),
            found,
        });
    }
    Ok(())
}

fn check_length(length: u64, page: PageSize) -> Result<(), Error> {
    let page = page.bytes();
    if length == 0 || !length.is_multiple_of(page) {
        return Err(Error::BadLength { length, page });
    }
    Ok(())
}

/// Returns the size in bytes of the pages that back a descriptor.
///
/// # Errors
/// [`Error::Call`] if `fstatfs` fails.
pub fn page_bytes(fd: impl AsFd) -> Result<u64, Error> {
    let stat = rustix::fs::fstatfs(fd).map_err(Error::call("fstatfs"))?;
    // The widths of these two fields differ between architectures.
    let kind = u64::try_from(stat.f_type).unwrap_or(0) & 0xffff_ffff;
    if kind == HUGETLBFS_MAGIC {
        Ok(u64::try_from(stat.f_bsize).unwrap_or(0))
    } else {
        Ok(PageSize::Base.bytes())
    }
}
