"""Reads the section `profiles`: selections of stacks, and of products of axis values."""

from __future__ import annotations

from harness.errors import Location
from harness.matrix.document.yaml_positions import NodePath
from harness.matrix.model.definitions import OmittedCheck, Profile, Selection
from harness.matrix.reading.resolve_names import Entry, NameResolver, text, texts


def read_profile(resolver: NameResolver, name: str, entry: Entry, stacks: list[str]) -> Profile:
    """The profile in `entry`, which satisfies the schema; problems are added to `resolver`.

    stacks: the stacks that `all` selects.
    """
    path: NodePath = ("profiles", name, "select")
    parts = enumerate(entry["select"])
    return Profile(
        name=name,
        title=text(entry["title"]),
        select=tuple(_selection(resolver, (*path, index), part, stacks) for index, part in parts),
        without=tuple(
            OmittedCheck(
                check=check,
                reason=text(reason),
                where=resolver.document.where(("profiles", name, "without", check), key=True),
            )
            for check, reason in entry.get("without", {}).items()
        ),
        where=resolver.document.where(("profiles", name), key=True),
    )


def _selection(resolver: NameResolver, path: NodePath, entry: Entry, stacks: list[str]) -> Selection:
    if ("stacks" in entry) == ("product" in entry):
        resolver.problem(
            path, "a selection needs either 'stacks' or 'product'", fix="use one entry for each of them"
        )
    if "stacks" in entry and ("with" in entry or "recipe" in entry):
        resolver.problem(path, "'with' and 'recipe' can only be used with 'product'; stacks define their own")
    selected = entry.get("stacks", [])
    for index, stack in enumerate(selected if isinstance(selected, list) else []):
        names = [*resolver.names("stacks"), *resolver.names("migrations")]
        resolver.known((*path, "stacks", index), "stack", stack, names)
    if isinstance(selected, str) and selected != "all":
        resolver.problem(
            (*path, "stacks"), f"'stacks' must be a list or all, not {selected!r}", fix=f"write [{selected}]"
        )
    product, provenance = _product(resolver, (*path, "product"), entry)
    fixed = resolver.values((*path, "with"), entry.get("with"))
    for axis, version in fixed.items():
        provenance[axis, str(version)] = resolver.document.where((*path, "with", axis))
        if axis in product:
            resolver.problem(
                (*path, "with", axis), f"{axis!r} is in both 'product' and 'with'", fix="remove one of them"
            )
    return Selection(
        stacks=tuple(stacks if selected == "all" else texts(selected)),
        product=product,
        fixed={axis: str(version) for axis, version in fixed.items()},
        recipe=resolver.recipe(path, entry),
        provenance=provenance,
        where=resolver.document.where(path),
    )


def _product(
    resolver: NameResolver, path: NodePath, entry: Entry
) -> tuple[dict[str, tuple[str, ...]], dict[tuple[str, str], Location]]:
    product: dict[str, tuple[str, ...]] = {}
    provenance: dict[tuple[str, str], Location] = {}
    for name, words in entry.get("product", {}).items():
        axis = resolver.axis((*path, name), name, key=True)
        if axis is None:
            continue
        for index, word in enumerate(texts(words)):
            version = resolver.value((*path, name, index), axis, word)
            if version is not None and (name, str(version)) in provenance:
                resolver.problem((*path, name, index), f"{version} is listed twice", fix="remove one of them")
            elif version is not None:
                provenance[name, str(version)] = resolver.document.where((*path, name, index))
        product[name] = tuple(value for axis_name, value in provenance if axis_name == name)
    return product, provenance
