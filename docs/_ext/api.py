# SPDX-License-Identifier: BSD-3-Clause
"""The directive `api`: public names of warpmpi, by docstrings and stubs.

    .. api::

       Comm
       Cartcomm as Comm

Each line is a name of `warpmpi.__all__`. After `as`, a class whose calls are
told there and not again. Types of parameters come from the stubs, as C
functions have none. The build warns of a public name that no page has.
"""

import ast
import enum
import inspect
import re
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import warpmpi

PACKAGE = Path(warpmpi.__file__).parent
# The defaults of parameters that a stub leaves out.
DEFAULTS = {
    "op": "MPI.SUM",
    "source": "MPI.ANY_SOURCE",
    "tag": "MPI.ANY_TAG",
    "recvtag": "MPI.ANY_TAG",
    "lock_type": "MPI.LOCK_EXCLUSIVE",
    "info": "MPI.INFO_NULL",
    "comm": "MPI.COMM_SELF",
    "cuda_stream": "None",
}
log = logging.getLogger(__name__)


class Kind(enum.Enum):
    FUNCTION = "function"
    METHOD = "method"
    CLASS_METHOD = "classmethod"
    STATIC_METHOD = "staticmethod"
    PROPERTY = "property"


def declarations():
    """The functions of stubs and modules, by "Class.name" or ".name".

    And the classes from which each class takes further ones.
    """
    found, bases = {}, {}
    paths = [*sorted(PACKAGE.rglob("*.py")), *sorted(PACKAGE.glob("*.pyi"))]
    for path in paths:  # a stub's are the last, and count
        mine = {}
        for each in ast.parse(path.read_text()).body:
            if isinstance(each, ast.ClassDef):
                named = map(ast.unparse, each.bases)
                bases[each.name] = [
                    base.split(".")[-1]
                    for base in named
                    if not base.startswith("MPI.")
                ]
                for inner in each.body:
                    declare(mine, f"{each.name}.", inner)
            else:
                declare(mine, ".", each)
        found |= mine
    return found, bases


def declare(found, owner, node):
    if isinstance(node, ast.FunctionDef):
        found.setdefault(f"{owner}{node.name}", []).append(node)


def decorators(node):
    return {ast.unparse(each) for each in node.decorator_list}


def parameters(node, bound):
    """Its signature as text; a bound one without `self`."""
    arguments = node.args
    for each in (arguments.posonlyargs, arguments.args):
        if bound and each:
            del each[0]
            break
    defaults = arguments.defaults, arguments.kw_defaults
    every = [*arguments.posonlyargs, *arguments.args]
    of = every[len(every) - len(defaults[0]) :], arguments.kwonlyargs
    for named, values in zip(of, defaults, strict=True):
        values[:] = map(told_default, named, values)
    text = ast.unparse(arguments)
    if node.returns is not None:
        text = f"({text}) -> {ast.unparse(node.returns)}"
    else:
        text = f"({text})"
    return text.replace("MPI.Comm.", "MPI.")


def told_default(argument, value):
    """A default as MPI names it, where a stub has three dots."""
    if isinstance(value, ast.Constant) and value.value is ...:
        return ast.Name(DEFAULTS[argument.arg])
    return value


def owner_of(cls, name):
    return next(each for each in cls.__mro__ if name in vars(each))


def members(cls):
    """The public attributes that the package adds or changes."""
    return [
        name
        for name in dir(cls)
        if name[0] != "_"
        and owner_of(cls, name).__module__.split(".")[0] == "warpmpi"
    ]


def kind_of(cls, name):
    value = inspect.getattr_static(cls, name)
    if isinstance(value, classmethod):
        return Kind.CLASS_METHOD
    if isinstance(value, staticmethod):
        return Kind.STATIC_METHOD
    return Kind.METHOD if callable(value) else Kind.PROPERTY


# The markup that a docstring may hold; the rest is plain text.
TOKEN = re.compile(
    r"``(?P<literal>[^`]+)``|:\w+:`(?P<role>[^`]+)`|`(?P<code>[^`]+)`"
    r"|\bwm\.(?P<ours>[A-Za-z]\w*(?:\.\w+)?)"
)


def marked_up(text):
    """A line of a docstring as reStructuredText."""
    done, at = "", 0
    for found in TOKEN.finditer(text):
        done += escaped(text[at : found.start()])
        at = found.end()
        literal = found["literal"] or found["role"] or found["code"]
        if literal:
            done += rf"\ ``{literal.strip()}``\ "
        else:
            name = found["ours"]
            done += rf"\ :py:obj:`wm.{name} <warpmpi.{name}>`\ "
    return done + escaped(text[at:])


def escaped(text):
    return re.sub(r"([\\*_|`])", r"\\\1", text)


def paragraphs(doc, name):
    """The lines of a docstring, of which some are those of a signature."""
    lines = inspect.cleandoc(doc or "").split("\n")
    if re.match(rf"{re.escape(name)}\(", lines[0]):
        lines = lines[1:]
    for line in lines:
        plain = line.strip()
        item = re.match(r"(\w+(?:, \w+)*): ", plain)
        if re.fullmatch(r"(Args|Attributes|Raises|Returns):", plain):
            yield from ("", f"*{plain}*", "")
        elif item and not plain.startswith("Raises"):
            names = ", ".join(f"``{each}``" for each in item[1].split(", "))
            yield from ("", f"{names}: {marked_up(plain[item.end() :])}")
        elif plain.startswith("Raises "):
            yield from ("", marked_up(plain))
        else:
            yield marked_up(plain)


class Described(SphinxDirective):
    """A directive that makes nodes of reStructuredText."""

    def parsed(self, module, lines):
        node = nodes.Element()
        text = StringList(
            [f".. py:currentmodule:: {module}", "", *lines],
            source=self.get_source_info()[0],
        )
        self.state.nested_parse(text, 0, node)
        return node.children


class ApiModule(Described):
    """The functions of a module that cannot be imported everywhere."""

    required_arguments = 1

    def run(self):
        module = self.arguments[0]
        path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        lines = []
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
                doc = ast.get_docstring(node)
                found = [parameters(node, False)]
                lines += entry("function", node.name, found, doc)
        return self.parsed(module, lines)


class Api(Described):
    has_content = True
    declared, bases = declarations()

    def run(self):
        made = []
        for line in filter(None, self.content):
            name, _, other = line.partition(" as ")
            lines = self.described(name, other or None)
            made += self.parsed("warpmpi", lines)
        return made

    def described(self, name, other):
        thing = getattr(warpmpi, name)
        if inspect.isclass(thing):
            return list(self.of_class(name, thing, other))
        doc = thing.__doc__
        if callable(thing):
            found = self.signatures("", name, doc, False)
            return entry("function", name, found, doc)
        if isinstance(thing, str):  # the class would tell of str
            doc = "The version of the package, as text."
        return entry("data", name, [""], doc)

    def of_class(self, name, cls, other):
        error = issubclass(cls, Exception)
        made = [] if error else self.constructor(cls)
        kind = "exception" if error else "class"
        yield from entry(kind, name, made or [""], cls.__doc__)
        skipped = set()
        if other is not None:
            yield from ("", f"   The calls of :py:obj:`{other}`, and:", "")
            skipped = set(members(getattr(warpmpi, other)))
        for each in members(cls):
            if each not in skipped:
                for line in self.of_member(cls, each):
                    yield f"   {line}" if line else ""

    def constructor(self, cls):
        """Its signature; none of a class that the library alone makes."""
        for maker in ("__new__", "__init__"):
            for owner in cls.__mro__:
                found = self.declared.get(f"{owner.__name__}.{maker}")
                if found and found[0].args.vararg is None:
                    text = [parameters(copied(each), True) for each in found]
                    return [each.split(" -> ")[0] for each in text]
        return []

    def of_member(self, cls, name):
        value = inspect.getattr_static(cls, name)
        kind = kind_of(cls, name)
        doc = getattr(getattr(cls, name), "__doc__", None)
        if kind is Kind.PROPERTY:
            doc = value.__doc__
            return entry("property", name, [""], doc, self.type_of(cls, name))
        owner = owner_of(cls, name).__name__
        bound = kind is not Kind.STATIC_METHOD
        found = self.signatures(owner, name, doc, bound)
        options = [f":{kind.value}:"] if kind is not Kind.METHOD else []
        return entry("method", name, found, doc, options)

    def type_of(self, cls, name):
        for found in self.found(owner_of(cls, name).__name__, name):
            if found.returns is not None:
                return [f":type: {ast.unparse(found.returns)}"]
        return []

    def found(self, owner, name):
        """Its declarations, also those that its class takes from others."""
        if f"{owner}.{name}" in self.declared:
            return list(map(copied, self.declared[f"{owner}.{name}"]))
        each = (self.found(base, name) for base in self.bases.get(owner, ()))
        return next(filter(None, each), [])

    def signatures(self, owner, name, doc, bound):
        found = self.found(owner, name) or self.found(owner, name.title())
        typed = [
            parameters(each, bound and "staticmethod" not in decorators(each))
            for each in found
        ]
        first = re.match(
            rf"{re.escape(name)}(\(.*)", inspect.cleandoc(doc or "")
        )
        if not typed and first:  # mpi4py's own words
            typed = [re.sub(r"\((self|cls)(, )?", "(", first[1])]
        if not typed:
            log.warning("api: no signature of %s.%s", owner, name)
        return typed or ["()"]


def copied(node):
    """A copy, as its arguments are changed."""
    return ast.parse(ast.unparse(node)).body[0]


def entry(kind, name, signatures, doc, options=()):
    """A directive of Sphinx's Python domain, with the docstring below."""
    opening = f".. py:{kind}:: "
    yield f"{opening}{name}{signatures[0]}"
    for more in signatures[1:]:
        yield f"{' ' * len(opening)}{name}{more}"
    for option in options:
        yield f"   {option}"
    yield ""
    for line in paragraphs(doc, name):
        yield f"   {line}" if line else ""
    yield ""


def wanted():
    """All public names, and for each those under one of which it may be."""
    for name in warpmpi.__all__:
        yield name, {name}
        thing = getattr(warpmpi, name)
        if inspect.isclass(thing):
            for each in members(thing):
                at = {f"{name}.{each}"}
                if hasattr(warpmpi.Comm, each) and name != "Comm":
                    at.add(f"Comm.{each}")
                for owner in thing.__mro__:
                    at.add(f"{owner.__name__}.{each}")
                yield f"{name}.{each}", at


def check(app, env):
    """Warn of names that no page has."""
    there = env.get_domain("py").objects
    for name, places in wanted():
        if not any(f"warpmpi.{place}" in there for place in places):
            log.warning("api: warpmpi.%s is on no page of docs/api", name)


def setup(app):
    app.add_directive("api", Api)
    app.add_directive("api-module", ApiModule)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
