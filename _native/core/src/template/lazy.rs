//! The filters that are generators in Jinja: minijinja's, with a generator's manners.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters};

use super::operators;
use super::value::Generator;

type Args = Rest<ValueOrKwargs>;
type Name<'a> = Option<Cow<'a, str>>;

pub fn install(env: &mut Environment<'static>) {
    env.add_filter("map", map);
    env.add_filter("select", |state: &mut State, value: Value, test: Name, args: Args| {
        filters::select(state, value, test, args).map(Generator::value)
    });
    env.add_filter("reject", |state: &mut State, value: Value, test: Name, args: Args| {
        filters::reject(state, value, test, args).map(Generator::value)
    });
    env.add_filter(
        "selectattr",
        |state: &mut State, value: Value, attr: Cow<str>, test: Name, args: Args| {
            filters::selectattr(state, value, attr, test, args).map(Generator::value)
        },
    );
    env.add_filter(
        "rejectattr",
        |state: &mut State, value: Value, attr: Cow<str>, test: Name, args: Args| {
            filters::rejectattr(state, value, attr, test, args).map(Generator::value)
        },
    );
    env.add_filter("unique", |state: &State, value: Value, options: Kwargs| {
        filters::unique(state, value, options).and_then(generator)
    });
    env.add_filter("batch", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        if fill.is_some() {
            state.consume_fuel(count as u64)?;
        }
        filters::batch(state, value, count, fill).and_then(generator)
    });
    env.add_filter("slice", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        filters::slice(state, value, count, fill).and_then(generator)
    });
    env.add_filter("items", |value: &Value| filters::items(value).and_then(generator));
    env.add_filter("reverse", |state: &State, value: &Value| match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            state.consume_fuel(value.len().unwrap_or(0) as u64)?;
            filters::reverse(value).and_then(generator)
        }
        ValueKind::Map | ValueKind::Undefined => filters::reverse(value).and_then(generator),
        _ => filters::reverse(value),
    });
}

/// The filter `map` by an attribute, or by a filter's name; minijinja's forgets that filter's named arguments.
fn map(state: &mut State, value: Value, args: Args) -> Result<Value, Error> {
    let Some(filter) = args.first().and_then(|name| name.as_str()).map(str::to_owned) else {
        return filters::map(state, value, args).map(Generator::value);
    };
    let args = args.into_values();
    let mut mapped = Vec::new();
    // Like Jinja's it takes what is false for nothing at all.
    let items = if value.is_true() { Some(value.try_iter()?) } else { None };
    for item in items.into_iter().flat_map(|items| items.checked()) {
        state.consume_fuel(1)?;
        let given = [&[item?], &args[1..]].concat();
        for part in &given {
            operators::weigh(part, 0, state)?;
        }
        let made = state.apply_filter(&filter, &given)?;
        operators::weigh(&made, 0, state)?;
        mapped.push(made);
    }
    Ok(Generator::value(mapped))
}

fn generator(items: Value) -> Result<Value, Error> {
    Ok(Generator::value(items.try_iter()?.checked().collect::<Result<_, _>>()?))
}
