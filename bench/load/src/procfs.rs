//! CPU time and memory of process trees: the processes' CPU clocks, and /proc.

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::collections::{BTreeMap, HashMap};
use std::fs;

/// Clock ticks a second of /proc/PID/stat: fixed at 100 for user space on Linux.
const TICKS: f64 = 100.0;
const PAGE_KIB: u64 = 4;

struct Stat {
    parent: u32,
    /// Ticks of the process itself.
    own_ticks: u64,
    /// Ticks of its children that have ended and were waited for.
    child_ticks: u64,
    rss_kib: u64,
}

/// What a set of process trees has used.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    pub cpu_seconds: f64,
    /// Sum of resident sets: pages shared by forked processes count once for each.
    pub rss_mib: f64,
    pub processes: usize,
    /// CPU seconds of each tree, by its root.
    pub by_root: BTreeMap<u32, f64>,
}

/// The trees under `roots` now; a root that does not exist is an error.
pub fn usage(roots: &[u32]) -> Result<Usage, String> {
    let table = table();
    let mut total = Usage::default();
    for &root in roots {
        if !table.contains_key(&root) {
            return Err(format!("no process {root}"));
        }
        let pids = tree(&table, root);
        let seconds: f64 = pids.iter().map(|&pid| cpu_seconds(pid, &table[&pid])).sum();
        let rss: u64 = pids.iter().map(|pid| table[pid].rss_kib).sum();
        total.processes += pids.len();
        total.rss_mib += rss as f64 / 1024.0;
        total.cpu_seconds += seconds;
        total.by_root.insert(root, seconds);
    }
    Ok(total)
}

/// User and system time of a process and its reaped children. The CPU clock of a process counts in nanoseconds
/// and includes its ended threads; where it cannot be read the ticks of 10 ms stand in.
fn cpu_seconds(pid: u32, stat: &Stat) -> f64 {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32)).and_then(clock_gettime);
    let own = clock
        .map_or(stat.own_ticks as f64 / TICKS, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9);
    own + stat.child_ticks as f64 / TICKS
}

/// Proportional set size in MiB: a page shared by k processes counts 1/k for each.
pub fn pss_mib(roots: &[u32]) -> f64 {
    let table = table();
    let pids = roots.iter().flat_map(|&root| tree(&table, root));
    let kib: u64 =
        pids.filter_map(|pid| pss_kib(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)).sum();
    kib as f64 / 1024.0
}

fn pss_kib(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn table() -> HashMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return HashMap::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parse(&text)?))
        })
        .collect()
}

/// Reads a stat line; the command's name may hold blanks and brackets, so fields count from its last bracket.
fn parse(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        parent: number(1)? as u32,
        own_ticks: number(11)? + number(12)?,
        child_ticks: number(13)? + number(14)?,
        rss_kib: number(21)? * PAGE_KIB,
    })
}

fn tree(table: &HashMap<u32, Stat>, root: u32) -> Vec<u32> {
    let mut pids = vec![root];
    let mut next = 0;
    while next < pids.len() {
        let parent = pids[next];
        pids.extend(table.iter().filter(|(_, stat)| stat.parent == parent).map(|(&pid, _)| pid));
        next += 1;
    }
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_read() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 0 1 2 3 4 10 20 30 40 20 0 1 0 100 4096 5 0";
        let stat = parse(line).unwrap();
        assert_eq!((stat.parent, stat.own_ticks, stat.child_ticks, stat.rss_kib), (3, 30, 70, 20));
    }

    #[test]
    fn own_process_is_seen() {
        let own = std::process::id();
        let seen = usage(&[own]).unwrap();
        assert!(seen.rss_mib > 0.5 && seen.processes >= 1);
        assert!(pss_mib(&[own]) > 0.1);
        assert!(usage(&[u32::MAX]).is_err());
    }

    #[test]
    fn the_clock_counts_finer_than_ticks() {
        let own = [std::process::id()];
        let before = usage(&own).unwrap().cpu_seconds;
        let after = usage(&own).unwrap().cpu_seconds;
        assert!(after > before, "reading /proc takes some microseconds: {before} {after}");
    }
}
