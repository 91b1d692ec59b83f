//! The tools of a request, as far as reading calls needs them.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// JSON types a value may have, as bits. None at all: nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    pub const STRING: Self = Self(1);
    pub const INTEGER: Self = Self(2);
    pub const NUMBER: Self = Self(4);
    pub const BOOLEAN: Self = Self(8);
    pub const NULL: Self = Self(16);
    pub const OBJECT: Self = Self(32);
    pub const ARRAY: Self = Self(64);

    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub fn is_unknown(self) -> bool {
        self.0 == 0
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "object" => Self::OBJECT,
            "array" => Self::ARRAY,
            _ => Self(0),
        }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::STRING,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Null => Self::NULL,
            Value::Object(_) => Self::OBJECT,
            Value::Array(_) => Self::ARRAY,
        }
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What a schema's own words allow, without its branches and references.
    fn of_fields(fields: &Map<String, Value>) -> Self {
        let types = match fields.get("type") {
            Some(Value::String(name)) => Self::named(name),
            Some(Value::Array(_)) => list(fields, "type")
                .filter_map(Value::as_str)
                .map(Self::named)
                .fold(Self::default(), Self::and),
            _ => Self::default(),
        };
        if !types.is_unknown() {
            return types;
        }
        list(fields, "enum").chain(fields.get("const")).map(Self::of).fold(types, Self::and)
    }
}

fn list<'a>(fields: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> {
    fields.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// What branches and references nest deeper than this allows is not looked at.
const DEPTH: u8 = 64;

/// One tool's schema. A reference is followed once, whoever has it: a small schema may have millions of ways
/// through it.
struct Schema<'a> {
    root: &'a Value,
    /// What references allow; nothing while one is being followed, as what leads back to it adds nothing.
    followed: HashMap<&'a str, Types>,
}

impl<'a> Schema<'a> {
    /// The types that a part of the schema allows.
    fn types(&mut self, part: &'a Value, depth: u8) -> Types {
        let Some(fields) = part.as_object().filter(|_| depth > 0) else { return Types::default() };
        let mut types = Types::of_fields(fields);
        for branch in ["anyOf", "oneOf", "allOf"].into_iter().flat_map(|key| list(fields, key)) {
            types = types.and(self.types(branch, depth - 1));
        }
        let reference = fields.get("$ref").and_then(Value::as_str);
        if let Some(path) = reference.and_then(|reference| reference.strip_prefix('#')) {
            types = types.and(self.follow(path, depth - 1));
        }
        if fields.get("nullable") == Some(&Value::Bool(true)) && !types.is_unknown() {
            types = types.and(Types::NULL);
        }
        types
    }

    fn follow(&mut self, path: &'a str, depth: u8) -> Types {
        if let Some(types) = self.followed.get(path) {
            return *types;
        }
        self.followed.insert(path, Types::default());
        let target = self.root.pointer(path);
        let types = target.map_or_else(Types::default, |target| self.types(target, depth));
        self.followed.insert(path, types);
        types
    }
}

/// The tools a model may call in one request.
#[derive(Debug, Default)]
pub struct Tools {
    /// False: at most one call comes out (`parallel_tool_calls`).
    pub parallel: bool,
    /// A call of a tool that is not here comes out all the same, as with SGLang's
    /// SGLANG_FORWARD_UNKNOWN_TOOLS. Otherwise it is dropped, as there by default.
    pub forward_unknown: bool,
    parameters: HashMap<String, HashMap<String, Types>>,
}

impl Tools {
    /// From names and parameter schemas (JSON Schema; null where a tool has none).
    pub fn new<'a>(tools: impl IntoIterator<Item = (&'a str, &'a Value)>, parallel: bool) -> Self {
        let parameters =
            tools.into_iter().map(|(name, schema)| (name.to_owned(), parameters(schema))).collect();
        Self { parallel, forward_unknown: false, parameters }
    }

    pub fn knows(&self, name: &str) -> bool {
        self.parameters.contains_key(name)
    }

    /// The types that a tool's parameter may have.
    pub fn types(&self, tool: &str, parameter: &str) -> Types {
        self.parameters.get(tool).and_then(|known| known.get(parameter)).copied().unwrap_or_default()
    }
}

fn parameters(root: &Value) -> HashMap<String, Types> {
    let mut schema = Schema { root, followed: HashMap::new() };
    let properties = root.get("properties").and_then(Value::as_object);
    let properties = properties.into_iter().flatten();
    properties.map(|(name, property)| (name.clone(), schema.types(property, DEPTH))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn types(schema: Value, parameter: &str) -> Types {
        Tools::new([("f", &schema)], true).types("f", parameter)
    }

    #[test]
    fn references_are_followed_wherever_they_stand() {
        let schema = json!({
            "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"anyOf": [{"$ref": "#/$defs/B"}, {"type": "null"}]},
                           "c": {"$ref": "#/$defs/none"}, "d": {"allOf": [{"$ref": "#/$defs/A"}], "nullable": true}},
            "$defs": {"A": {"oneOf": [{"$ref": "#/$defs/B"}, {"enum": [1, true]}]}, "B": {"type": ["string", "array"]}},
        });
        let b = Types::STRING.and(Types::ARRAY);
        let a = b.and(Types::INTEGER).and(Types::BOOLEAN);
        assert_eq!(types(schema.clone(), "a"), a);
        assert_eq!(types(schema.clone(), "b"), b.and(Types::NULL));
        assert_eq!(types(schema.clone(), "c"), Types::default());
        assert_eq!(types(schema, "d"), a.and(Types::NULL));
    }

    #[test]
    fn what_leads_back_to_itself_ends() {
        let branches = vec![json!({"$ref": "#/$defs/A"}); 1000];
        let wide = json!({"properties": {"a": {"$ref": "#/$defs/A"}},
            "$defs": {"A": {"anyOf": branches, "type": "string"}}});
        assert_eq!(types(wide, "a"), Types::STRING);
        let chained: Map<String, Value> = (0..5000)
            .map(|n| (n.to_string(), json!({"$ref": format!("#/$defs/{}", n + 1), "type": "string"})))
            .collect();
        let deep = json!({"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": chained});
        assert_eq!(types(deep, "a"), Types::STRING);
    }
}
