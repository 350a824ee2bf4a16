//! The table against what the stock program lists and the documentation has, and command lines.

use super::*;
use crate::args::Args;

/// Each flag of the wheel 0.3.13.post1 with its type and default. `--test program` compares it with `mooncake_master --help`.
const RECORDED: &str = include_str!("../stock_flags.txt");

fn of(arguments: &[&str]) -> Result<Vec<String>, String> {
    let all = ["mooncake_master"].iter().chain(arguments);
    let kept = translate(all.map(OsString::from))?;
    let kept = kept.into_iter().skip(1);
    Ok(kept.map(|one| one.into_string().unwrap()).collect())
}

#[test]
fn the_table_has_each_flag_of_the_stock_master_once_with_its_type_and_default() {
    let line = |flag: Flag| {
        let default = flag
            .default
            .parse::<f64>()
            .map_or_else(|_| flag.default.to_owned(), |number| number.to_string());
        (flag.name.to_owned(), default, flag.is_switch())
    };
    let mut table: Vec<_> = flags().map(line).collect();
    table.sort();
    let recorded = RECORDED.lines().map(|line| {
        let [name, kind, default] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let default = default.trim_matches('"');
        let default = default
            .parse::<f64>()
            .map_or_else(|_| default.to_owned(), |number| number.to_string());
        (name.to_owned(), default, kind == "bool")
    });
    let mut recorded: Vec<_> = recorded.collect();
    recorded.sort();
    assert_eq!(table, recorded);
}

/// `Beside` names only flags that are refused at another value than their default.
#[test]
fn what_is_read_only_beside_another_flag_names_one_that_is_refused() {
    for group in GROUPS {
        let Beside(others) = group.rule else { continue };
        let others = others.replace(" or ", ", ");
        for other in others.split(", ") {
            let rule = flag(other).unwrap().rule;
            assert!(matches!(rule, Default(_)), "{other}: {rule:?}");
        }
    }
}

#[test]
fn values_whose_effect_this_program_has_are_accepted() {
    let dropped = [
        "--memory_allocator=offset",
        "--enable_metric_reporting=false",
        "-noenable_metric_reporting",
        "--enable_offload=0",
        "--enable_ha=False",
        "--enable_ha",
        "false",
        "--etcd_endpoints=a:2379;b:2379",
        "-cluster_id",
        "kv",
        "--root_fs_dir=",
        "--nof_eviction_ratio=0.050",
        "--max_total_pending_tasks=10000",
        "--stderrthreshold=0",
        "--v=0",
        "--quota_bytes",
        "1",
    ];
    assert_eq!(of(&dropped), Ok(vec![]));
    for flag in flags().filter(|flag| !matches!(flag.rule, Here | Only(..))) {
        let argument = format!("--{}={}", flag.name, flag.default);
        assert_eq!(of(&[&argument]), Ok(vec![]), "the default");
    }
}

#[test]
fn every_refused_flag_is_named_with_what_to_do() {
    let refused = of(&[
        "--memory_allocator=cachelib",
        "--port=1",
        "--enable_offload",
        "-v",
        "1",
        "--rpc_interface=eth0",
    ])
    .unwrap_err();
    let lines: Vec<_> = refused.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "  --memory_allocator=cachelib: this master has no other allocator; remove the flag",
            "  --enable_offload=true: this master keeps no objects on disk; remove the flag, or use the stock master",
            "  --v=1: the log goes to standard error; set its level by the variable RUST_LOG",
            "  --rpc_interface=eth0: set --rpc_address to the address of the interface",
        ]
    );
    for wrong in [
        "--enable_metric_reporting",
        "--config_path=master.yaml",
        "--dynamic_replication_mode=enforce",
        "--enable_ha=maybe",
        "--root_fs_dir",
        "--max_retry_attempts=3",
        "--snapshot_interval_seconds",
    ] {
        assert!(of(&[wrong]).is_err(), "{wrong}");
    }
}

#[test]
fn other_arguments_are_passed_on_and_the_switches_of_this_program_in_its_form() {
    let kept = [
        "-port",
        "61351",
        "--admitted_file=/a",
        "-h",
        "--",
        "-none=1",
        "--enable_multi_tenants=1",
        "--enable_multi_tenants",
        "0",
        "--nohelp",
        "--version=false",
        "--tenant_quota_connector_uri=",
        "-nologtostderr",
        "--allocation_strategy=cxl",
    ];
    let expected = [
        "--port=61351",
        "--admitted_file=/a",
        "-h",
        "--",
        "--none=1",
        "--enable_multi_tenants=true",
        "--enable_multi_tenants=false",
        "--logtostderr=false",
        "--allocation_strategy=cxl",
    ];
    assert_eq!(of(&kept), Ok(expected.map(str::to_owned).into()));
}

/// As with the stock master, so that users can append flags to those of a manifest.
#[test]
fn the_last_value_of_a_repeated_flag_counts() {
    assert_eq!(of(&["--enable_ha=true", "--enable_ha=false"]), Ok(vec![]));
    assert!(of(&["--enable_ha=false", "--enable_ha=true"]).is_err());
    let line = ["mooncake_master", "--port=1", "--nohelp", "--port=2"];
    let args = Args::read(line.map(OsString::from)).unwrap();
    assert_eq!(args.port, 2);
}

#[test]
fn this_program_starts_with_the_stock_default_of_each_of_its_flags() {
    let here = flags().filter(|flag| flag.rule == Here);
    let line = here.map(|flag| format!("--{}={}", flag.name, flag.default).into());
    let line: Vec<OsString> = std::iter::once("mooncake_master".into())
        .chain(line)
        .collect();
    if let Err(error) = Args::read(line) {
        panic!("{error}");
    }
}

#[test]
fn the_documentation_has_the_table() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/master.md");
    let page = std::fs::read_to_string(page).unwrap();
    let code = |names: &str| {
        let names = names.replace(" or ", ", ");
        let names: Vec<_> = names.split(", ").map(|name| format!("`{name}`")).collect();
        names.join(", ")
    };
    let rows = GROUPS.iter().filter_map(|group| {
        let flags = group.flags.iter();
        let (accepted, reason) = match group.rule {
            Here => return None,
            Any(why) => ("any".to_owned(), why.to_owned()),
            Beside(others) => (
                "any".to_owned(),
                format!("read only beside {}", code(others)),
            ),
            Only(value, remedy) => (format!("`{value}`"), remedy.to_owned()),
            Default(remedy) => ("this one".to_owned(), remedy.to_owned()),
        };
        let with_values = matches!(group.rule, Default(_));
        let flags = flags.map(|(name, default)| match with_values {
            true => format!("`{name}={default}`"),
            false => format!("`{name}`"),
        });
        let flags: Vec<_> = flags.collect();
        Some(format!(
            "| {} | {accepted} | {reason} |\n",
            flags.join(", ")
        ))
    });
    let head = "| flag | accepted value | otherwise, or why |\n|---|---|---|\n";
    let table = head.to_owned() + &rows.collect::<String>();
    assert!(page.contains(&table), "docs/master.md needs\n{table}");
}
