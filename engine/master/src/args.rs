//! Command-line flags, with the names that the stock master gives them. `stock` decides about those that the stock master has and this
//! list has not.

mod stock;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, Parser, ValueEnum};

use crate::index::{Commit, Placement, Settings};
use crate::server::Limits;

/// The master of the store: the index of keys for stock clients 0.3.13.
#[derive(Debug, Clone, Parser)]
#[command(
    version,
    args_override_self = true,
    after_help = "Of the other flags of the stock master those are accepted whose value has no effect here: docs/master.md lists them."
)]
pub struct Args {
    /// Port for RPC; 0 means the value of --port.
    #[arg(long = "rpc_port", default_value_t = 0)]
    rpc_port: u16,
    /// Port for RPC, if --rpc_port is not set.
    #[arg(long = "port", default_value_t = 50051)]
    port: u16,
    /// Address for RPC.
    #[arg(long = "rpc_address", default_value = "0.0.0.0")]
    rpc_address: IpAddr,
    /// Threads; 0 means the value of --max_threads.
    #[arg(long = "rpc_thread_num", default_value_t = 0)]
    rpc_thread_num: usize,
    /// Threads, if --rpc_thread_num is not set; 0 means one per processor, at most 16.
    #[arg(long = "max_threads", default_value_t = 0)]
    max_threads: usize,
    /// Seconds without a request after which a connection is closed; 0 means never.
    #[arg(long = "rpc_conn_timeout_seconds", default_value_t = 0)]
    rpc_conn_timeout_seconds: u64,
    /// Sends small replies at once.
    #[arg(long = "rpc_enable_tcp_no_delay", default_value_t = true, action = ArgAction::Set,
          num_args = 0..=1, default_missing_value = "true")]
    rpc_enable_tcp_no_delay: bool,

    /// Port for metrics, health and queries by HTTP.
    #[arg(long = "metrics_port", default_value_t = 9003)]
    metrics_port: u16,
    /// Address for metrics, health and queries by HTTP.
    #[arg(long = "metrics_host", default_value = "0.0.0.0")]
    metrics_host: IpAddr,

    /// File with the addresses of peers that may connect, in lines of `member ADDRESS` or `operator ADDRESS`, each followed by
    /// the UIDs of the pods at that address. It is read again when another file replaces it. Without this flag every peer may
    /// connect, as to the stock master.
    #[arg(long = "admitted_file")]
    admitted_file: Option<PathBuf>,
    /// Port for health and metrics by HTTP that every peer may connect to; 0 means none.
    #[arg(long = "open_port", default_value_t = 0)]
    open_port: u16,
    /// Socket of the program that elects one of several masters. This one serves only while it leads. Without this flag it
    /// serves always.
    #[arg(long = "elector_socket")]
    elector_socket: Option<PathBuf>,

    /// Time in which an object that was looked up is neither evicted nor removed: milliseconds, or with ms, s, m or h.
    #[arg(long = "default_kv_lease_ttl", default_value = "10000", value_parser = duration)]
    default_kv_lease_ttl: Duration,
    /// Time of a soft pin whose request names none.
    #[arg(long = "default_kv_soft_pin_ttl", default_value = "30m", value_parser = duration)]
    default_kv_soft_pin_ttl: Duration,
    /// Limit of the time that a request for a soft pin may name.
    #[arg(long = "max_kv_soft_pin_ttl", default_value = "24h", value_parser = duration)]
    max_kv_soft_pin_ttl: Duration,
    /// Evicts soft-pinned objects when no others are left.
    #[arg(long = "allow_evict_soft_pinned_objects", default_value_t = true, action = ArgAction::Set,
          num_args = 0..=1, default_missing_value = "true")]
    allow_evict_soft_pinned_objects: bool,
    /// Fraction of the objects that one eviction removes at least.
    #[arg(long = "eviction_ratio", default_value_t = 0.05, value_parser = ratio)]
    eviction_ratio: f64,
    /// Fraction of used space above which objects are evicted.
    #[arg(long = "eviction_high_watermark_ratio", default_value_t = 0.90, value_parser = ratio)]
    eviction_high_watermark_ratio: f64,
    /// Seconds without a request after which a client's segments are unmounted.
    #[arg(long = "client_ttl", default_value_t = 10)]
    client_ttl: u64,
    /// Seconds after which another writer may start a put of the same key.
    #[arg(long = "put_start_discard_timeout_sec", default_value_t = 30)]
    put_start_discard_timeout_sec: u64,
    /// Seconds after which the space of a discarded put is used again.
    #[arg(long = "put_start_release_timeout_sec", default_value_t = 600)]
    put_start_release_timeout_sec: u64,
    /// Where new objects are placed.
    #[arg(long = "allocation_strategy", value_enum, default_value_t = Strategy::Random)]
    allocation_strategy: Strategy,
    /// When a put is answered: `sync`, after the pool pods have the record of its key; `async`, before, which is faster. The puts
    /// of the last moments before the end of the master are then lost.
    #[arg(long = "commit", value_enum, default_value_t = Committed::Sync)]
    commit: Committed,

    /// Bytes of memory that keys may take in the index; 0 means three quarters of the memory limit of the container, or any number
    /// without one.
    #[arg(long = "max_index_bytes", default_value_t = 0)]
    max_index_bytes: u64,

    /// Gives each tenant its own keys and a quota of memory.
    #[arg(long = "enable_multi_tenants", default_value_t = false, action = ArgAction::Set,
          num_args = 0..=1, default_missing_value = "true")]
    enable_multi_tenants: bool,
    /// Where the quotas of tenants come from.
    #[arg(long = "tenant_quota_connector_type", value_enum, default_value_t = Connector::File)]
    tenant_quota_connector_type: Connector,
    /// YAML file with the quotas of tenants. It is read again when another file replaces it.
    #[arg(long = "tenant_quota_connector_uri")]
    tenant_quota_connector_uri: Option<PathBuf>,

    /// Serves transfer engine metadata by HTTP.
    #[arg(long = "enable_http_metadata_server", default_value_t = false, action = ArgAction::Set,
          num_args = 0..=1, default_missing_value = "true")]
    enable_http_metadata_server: bool,
    #[arg(long = "http_metadata_server_host", default_value = "0.0.0.0")]
    http_metadata_server_host: IpAddr,
    #[arg(long = "http_metadata_server_port", default_value_t = 8080)]
    http_metadata_server_port: u16,

    /// Accepted: logs always go to standard error.
    #[arg(long = "logtostderr", default_value_t = true, action = ArgAction::Set,
          num_args = 0..=1, default_missing_value = "true")]
    logtostderr: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Strategy {
    Random,
    LocalFirst,
    FreeRatioFirst,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Committed {
    Sync,
    Async,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Connector {
    File,
}

/// Reads a duration: `10000` (milliseconds), `500ms`, `5s`, `30m`, `24h`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|sign: char| !sign.is_ascii_digit());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is not a number with ms, s, m or h"))?;
    let unit = match &text[digits.len()..] {
        "" | "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        other => return Err(format!("{other:?} is not one of ms, s, m and h")),
    };
    let milliseconds = number
        .checked_mul(unit)
        .ok_or_else(|| format!("{text} is too long"))?;
    Ok(Duration::from_millis(milliseconds))
}

fn ratio(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| format!("{text:?} is not a number from 0 to 1"))
}

impl Args {
    /// Reads the arguments of this process. It ends if they are wrong, or if they request help.
    #[must_use]
    pub fn of_process() -> Self {
        Self::read(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let arguments = stock::translate(arguments);
        let arguments = arguments
            .map_err(|refused| Self::command().error(ErrorKind::ValueValidation, refused))?;
        Self::try_parse_from(arguments)
    }

    /// Checks what no single flag shows, and returns the settings of the index in a container with this limit of memory.
    ///
    /// # Errors
    /// A text that names the flags that do not go together.
    pub fn settings(&self, memory: Option<u64>) -> Result<Settings, String> {
        if self.default_kv_soft_pin_ttl > self.max_kv_soft_pin_ttl {
            return Err("--default_kv_soft_pin_ttl exceeds --max_kv_soft_pin_ttl".into());
        }
        if self.put_start_release_timeout_sec <= self.put_start_discard_timeout_sec {
            return Err(
                "--put_start_release_timeout_sec must exceed --put_start_discard_timeout_sec"
                    .into(),
            );
        }
        match (self.enable_multi_tenants, &self.tenant_quota_connector_uri) {
            (true, None) => {
                return Err("--enable_multi_tenants needs --tenant_quota_connector_uri".into());
            }
            (false, Some(_)) => {
                return Err(
                    "--tenant_quota_connector_uri has no effect without --enable_multi_tenants"
                        .into(),
                );
            }
            _ => {}
        }
        Ok(Settings {
            lease_ttl: self.default_kv_lease_ttl,
            soft_pin_ttl: self.default_kv_soft_pin_ttl,
            max_soft_pin_ttl: self.max_kv_soft_pin_ttl,
            evict_soft_pinned: self.allow_evict_soft_pinned_objects,
            eviction_ratio: self.eviction_ratio,
            high_watermark: self.eviction_high_watermark_ratio,
            client_ttl: Duration::from_secs(self.client_ttl),
            put_discard: Duration::from_secs(self.put_start_discard_timeout_sec),
            put_release: Duration::from_secs(self.put_start_release_timeout_sec),
            placement: match self.allocation_strategy {
                Strategy::Random => Placement::Random,
                Strategy::LocalFirst => Placement::LocalFirst,
                Strategy::FreeRatioFirst => Placement::FreeRatioFirst,
            },
            commit: match self.commit {
                Committed::Sync => Commit::Sync,
                Committed::Async => Commit::Async,
            },
            index_bytes: if self.max_index_bytes > 0 {
                self.max_index_bytes
            } else {
                memory.map_or(u64::MAX, |limit| limit / 4 * 3)
            },
        })
    }

    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            idle: (self.rpc_conn_timeout_seconds > 0)
                .then(|| Duration::from_secs(self.rpc_conn_timeout_seconds)),
            no_delay: self.rpc_enable_tcp_no_delay,
            ..Limits::default()
        }
    }

    #[must_use]
    pub fn rpc(&self) -> SocketAddr {
        let port = if self.rpc_port == 0 {
            self.port
        } else {
            self.rpc_port
        };
        SocketAddr::new(self.rpc_address, port)
    }

    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        SocketAddr::new(self.metrics_host, self.metrics_port)
    }

    /// Returns the address of the port for every peer, if it is wanted.
    #[must_use]
    pub fn open(&self) -> Option<SocketAddr> {
        let address = SocketAddr::new(self.metrics_host, self.open_port);
        (self.open_port > 0).then_some(address)
    }

    /// Returns the file with the addresses of peers that may connect.
    #[must_use]
    pub fn admitted_file(&self) -> Option<PathBuf> {
        self.admitted_file.clone()
    }

    /// Returns the file with the quotas of tenants; `None`: there are no tenants.
    #[must_use]
    pub fn quota_file(&self) -> Option<PathBuf> {
        let Connector::File = self.tenant_quota_connector_type;
        let file = self.tenant_quota_connector_uri.clone();
        file.filter(|_| self.enable_multi_tenants)
    }

    /// Returns the socket of the elector; `None`: there is no other master.
    #[must_use]
    pub fn elector_socket(&self) -> Option<PathBuf> {
        self.elector_socket.clone()
    }

    /// Returns the address of the metadata server, if it is wanted.
    #[must_use]
    pub fn metadata(&self) -> Option<SocketAddr> {
        let address = SocketAddr::new(
            self.http_metadata_server_host,
            self.http_metadata_server_port,
        );
        self.enable_http_metadata_server.then_some(address)
    }

    /// Returns the number of worker threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        let flags = [self.rpc_thread_num, self.max_threads];
        if let Some(threads) = flags.into_iter().find(|&threads| threads > 0) {
            return threads;
        }
        std::thread::available_parallelism().map_or(1, |processors| processors.get().min(16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_by_the_stock_master() {
        let milliseconds = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(milliseconds("10000"), Ok(10_000));
        assert_eq!(milliseconds("5ms"), Ok(5));
        assert_eq!(milliseconds("5s"), Ok(5000));
        assert_eq!(milliseconds("1m"), Ok(60_000));
        assert_eq!(milliseconds("2h"), Ok(7_200_000));
        for wrong in ["", "s", "5d", "-1", "1.5s", "18446744073709551615h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_flags_of_the_operator_are_accepted_and_the_defaults_are_those_of_the_index() {
        let args = Args::parse_from([
            "mooncake-master",
            "--rpc_port=50061",
            "--metrics_port=9004",
            "--client_ttl=30",
            "--logtostderr",
        ]);
        assert_eq!((args.rpc().port(), args.admin().port()), (50061, 9004));
        let expected = Settings {
            client_ttl: Duration::from_secs(30),
            ..Settings::default()
        };
        assert_eq!(args.settings(None), Ok(expected));
        assert_eq!(args.limits(), Limits::default());
        assert_eq!(args.metadata(), None);
        assert_eq!((args.open(), args.admitted_file()), (None, None));
        assert_eq!(args.elector_socket(), None);
    }

    #[test]
    fn command_lines_of_the_stock_master_are_accepted() {
        let of = |arguments: &[&str]| {
            let all = ["mooncake_master"].iter().chain(arguments);
            let args = Args::read(all.map(OsString::from));
            args.map(|args| (args.rpc().port(), args.admin().port(), args.threads()))
                .map_err(|error| error.kind())
        };
        // That of upstream's test of its command line.
        let expected = Ok((61351, 19003, 2));
        let upstream = ["--port=61351", "--max_threads=2", "--metrics_port=19003"];
        assert_eq!(of(&upstream), expected);
        let single = ["-port", "61351", "-max_threads=2", "-metrics_port=19003"];
        assert_eq!(of(&single), expected);
        let preferred = [&upstream[..], &["--rpc_thread_num=3", "-rpc_port=1"]].concat();
        assert_eq!(of(&preferred), Ok((1, 19003, 3)));
        assert_eq!(of(&["-h"]), Err(ErrorKind::DisplayHelp));
        assert_eq!(of(&["-none=1"]), Err(ErrorKind::UnknownArgument));
        let template = [
            &upstream[..],
            &[
                "--memory_allocator=offset",
                "--enable_metric_reporting=false",
                "--enable_offload=false",
                "--allocation_strategy=free_ratio_first",
            ],
        ];
        assert_eq!(of(&template.concat()), expected);
        assert_eq!(of(&["--enable_ha"]), Err(ErrorKind::ValueValidation));
    }

    #[test]
    fn keys_take_a_part_of_the_memory_of_the_container_unless_a_flag_states_how_much() {
        let bytes = |flags: &[&str], memory| {
            let args = Args::parse_from([&["mooncake-master"], flags].concat());
            args.settings(memory).unwrap().index_bytes
        };
        assert_eq!(bytes(&[], None), u64::MAX);
        assert_eq!(bytes(&[], Some(1 << 30)), 768 << 20);
        assert_eq!(bytes(&["--max_index_bytes=1000"], Some(1 << 30)), 1000);
    }

    #[test]
    fn flags_that_contradict_each_other_or_have_no_effect_are_refused() {
        let refused = |flag: &str| {
            let args = Args::read(["mooncake-master", flag].map(OsString::from));
            args.map_err(|error| error.to_string())
                .and_then(|args| args.settings(None))
                .is_err()
        };
        assert!(refused("--put_start_release_timeout_sec=30"));
        assert!(refused("--default_kv_soft_pin_ttl=25h"));
        assert!(refused("--eviction_ratio=1.5"));
        assert!(refused("--allocation_strategy=cxl"));
        assert!(refused("--enable_ha=true"));
        assert!(!refused("--allocation_strategy=local_first"));
    }
}
