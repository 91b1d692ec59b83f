//! Command line options, declared once in a table a subcommand: name, value's place holder, default, help.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::str::FromStr;

/// One option. `value` is empty for a switch; `default` is empty for "not given".
pub struct Opt {
    pub name: &'static str,
    pub value: &'static str,
    pub default: &'static str,
    pub help: &'static str,
}

/// The options given, checked against their table.
pub struct Args {
    values: HashMap<&'static str, String>,
}

impl Args {
    /// Reads `--name value` pairs and `--switch`es; unknown names and missing values are errors.
    pub fn parse(table: &'static [Opt], words: &[String]) -> Result<Args, String> {
        let mut values = HashMap::new();
        for opt in table.iter().filter(|opt| !opt.default.is_empty()) {
            values.insert(opt.name, opt.default.to_owned());
        }
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let opt = word
                .strip_prefix("--")
                .and_then(|name| table.iter().find(|opt| opt.name == name))
                .ok_or_else(|| format!("unknown option {word}\n{}", usage(table)))?;
            let value = if opt.value.is_empty() {
                "true".to_owned()
            } else {
                rest.next().ok_or_else(|| format!("{word} needs a value"))?.clone()
            };
            values.insert(opt.name, value);
        }
        Ok(Args { values })
    }

    pub fn switch(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The value parsed, or None where the option was not given and has no default.
    pub fn maybe<T: FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        self.text(name)
            .map(|text| text.parse().map_err(|_| format!("--{name}: bad value {text:?}")))
            .transpose()
    }

    pub fn get<T: FromStr>(&self, name: &str) -> Result<T, String> {
        self.maybe(name)?.ok_or_else(|| format!("--{name} is required"))
    }
}

/// The help text made from the table.
pub fn usage(table: &[Opt]) -> String {
    let mut text = String::new();
    for opt in table {
        let head = format!("--{} {}", opt.name, opt.value);
        let default = if opt.default.is_empty() { String::new() } else { format!(" [{}]", opt.default) };
        let _ = writeln!(text, "  {head:26} {}{default}", opt.help);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Opt] = &[
        Opt { name: "port", value: "P", default: "7", help: "" },
        Opt { name: "burst", value: "", default: "", help: "" },
    ];

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn defaults_values_and_switches() {
        let args = Args::parse(TABLE, &[]).unwrap();
        assert_eq!(args.get::<u16>("port").unwrap(), 7);
        assert!(!args.switch("burst"));
        let args = Args::parse(TABLE, &words("--burst --port 9")).unwrap();
        assert_eq!(args.get::<u16>("port").unwrap(), 9);
        assert!(args.switch("burst"));
    }

    #[test]
    fn bad_input_is_refused() {
        assert!(Args::parse(TABLE, &words("--prot 9")).is_err());
        assert!(Args::parse(TABLE, &words("--port")).is_err());
        let args = Args::parse(TABLE, &words("--port many")).unwrap();
        assert!(args.get::<u16>("port").is_err());
    }
}
