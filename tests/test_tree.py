# SPDX-License-Identifier: BSD-3-Clause
"""The tree is as the design says: layers, names, licences, documentation."""

import ast
import importlib
import importlib.machinery
import inspect
import pickle
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build_tools"))

import sources  # noqa: E402

SRC = ROOT / "src"

# What a layer may include with quotes: itself and the layers below it. The
# kernels' parameter headers are shared with whoever launches them.
LAYERS = {
    "cuda": {"cuda"},
    "kernels": {"kernels"},
    "array": {"array", "cuda", "kernels"},
    "comm": {"comm", "array", "cuda", "kernels"},
    "python": {"python", "comm", "array", "cuda", "kernels"},
}
SOURCES = sorted(path for path in SRC.rglob("*.[ch]") if path.is_file())
KERNELS = sorted(SRC.rglob("*.cu"))
PYTHON = sorted(
    path
    for folder in (
        *("warpmpi", "tests", "examples", "benchmarks", "build_tools"),
        "docs",
    )
    for path in (ROOT / folder).rglob("*.py")
)
DOCUMENTS = sorted(
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
)


def name(path):
    return str(path.relative_to(ROOT))


def of_each(paths):
    """Runs a test on each path, as one: it tells of all that are wrong.

    An item of pytest's takes longer than to read the file, and there would be
    thousands.
    """
    paths = list(paths)

    def make(test):
        def run():
            wrong = []
            for path in paths:
                try:
                    test(path)
                except Exception as error:
                    wrong.append(f"{name(path)}: {error!r}")
            assert paths
            if wrong:
                pytest.fail("\n".join(wrong), pytrace=False)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return make


def includes(path, pattern):
    return re.findall(
        rf"^\s*#\s*include\s+{pattern}", path.read_text(), re.MULTILINE
    )


@of_each([*SOURCES, *KERNELS])
def test_layer_includes_only_layers_below(path):
    layer = path.relative_to(SRC).parts[0]
    for header in includes(path, '"([^"]+)"'):
        assert "/" in header, f"{header}: write the path from src/"
        assert header.split("/")[0] in LAYERS[layer], header


# Modules of a layer: one includes and calls itself and those before it.
MODULES = {
    "comm": (
        "engine node link comm message transfer protocol diagnostics "
        "coll/call coll/direct coll/stream coll/mpi coll/movers coll/nccl "
        "coll/run coll/hierarchy rma"
    ).split(),
    "python": (
        "core device view array message request comm rma objects "
        "staging".split()
    ),
}


def module_of(path):
    """The layer of a source, and its place among the layer's modules."""
    layer, *folders = path.relative_to(SRC).parts[:-1]
    modules = MODULES.get(layer, [""])
    module = "/".join(folders)
    return layer, modules.index(module)


@of_each(SOURCES)
def test_module_includes_only_modules_before_it(path):
    layer, place = module_of(path)
    for header in includes(path, f'"{layer}/([^"]+)"'):
        other = SRC / layer / header
        assert module_of(other)[1] <= place, header


def code_of(path):
    """Its text without comments and what is in quotes."""
    text = re.sub(r"//.*|/\*(?s:.*?)\*/", "", path.read_text())
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def test_module_calls_only_modules_before_it():
    """By the names of functions, wherever they are declared."""
    sources = [path for path in SOURCES if path.suffix == ".c"]
    place = {path: module_of(path) for path in sources}
    where = {
        function: path
        for path in sources
        for function in re.findall(r"^(wm_\w+)\(", code_of(path), re.MULTILINE)
    }
    assert len(where) > 1000
    wrong = [
        f"{name(path)}: {function}, of {name(where[function])}"
        for path in sources
        for function in set(re.findall(r"\bwm_\w+\b", code_of(path)))
        if function in where
        and place[path][0] == place[where[function]][0]
        and place[path][1] < place[where[function]][1]
    ]
    assert not wrong, "\n".join(wrong)


# Members of one end of a message that are one file's, and who else may look.
# A protocol's own state has no name outside its file (WM_STATE).
OWN = {
    "was_unexpected|withdrawn": {"receive.c", "unexpected.c"},
    "held|discards|asked": {"receive.c"},
    r"\w+_state": {"protocol.h"},
}


@of_each(each for each in SOURCES if "comm" in each.parts)
def test_state_of_an_end_belongs_to_one_module(path):
    """What makes one, and tells how far it is, names all (end.c)."""
    text = path.read_text()
    for members, files in OWN.items():
        if path.name not in files | {"end.c"}:
            assert not re.search(rf"\bend->({members})\b", text), members


ROW = r"^const wm_(?:sending|receiving)_t (wm_\w+) = \{(.*?)^\};"


def test_protocols_know_each_other_by_the_lists_alone():
    """A row that takes messages stands there, and is compared with none."""
    table = (SRC / "comm/protocol/table.c").read_text()
    rows = {}
    for path in SOURCES:
        text = path.read_text()
        rows.update(re.findall(ROW, text, re.MULTILINE | re.DOTALL))
        asked = re.findall(r"[!=]= &wm_(?:sending|receiving)_\w+", text)
        assert not asked, name(path)
    assert len(rows) > 15
    for row, body in rows.items():
        takes = re.search(r"\.(try_take|accept|kind) =", body)
        assert bool(takes) == (f"&{row}," in table), row


@of_each(SOURCES)
def test_objects_are_kept_in_the_state_of_the_module(path):
    """None is static: the collector sees them, and they end with it."""
    kept = (
        r"^\s*(?:static|extern) (?:Py\w*Object|PyStructSequence) \*\w+[;,=[ ]"
    )
    assert not re.findall(kept, path.read_text(), re.MULTILINE)


def test_functions_that_the_core_calls_are_there():
    """Those in Python, by wm_py_cold(), most of them after an error."""
    call = r'wm_py_cold\(\s*"([\w.]+)",\s*"(\w+)"'
    called = [
        each for path in SOURCES for each in re.findall(call, path.read_text())
    ]
    assert called
    for module, function in called:
        assert callable(getattr(importlib.import_module(module), function))


@of_each(SOURCES)
def test_only_the_top_layer_knows_python(path):
    if path.relative_to(SRC).parts[0] != "python":
        assert not includes(path, r"[<\"](Python\.h|mpi4py/|numpy/)")


@of_each(SOURCES)
def test_only_the_upper_layers_know_mpi(path):
    if path.relative_to(SRC).parts[0] not in ("comm", "python"):
        assert not includes(path, r"[<\"]mpi\.h")


def test_the_build_takes_every_source_bottom_layer_first():
    """In folders of a layer, too; a file elsewhere is one that is lost."""
    there = [name(path) for path in SOURCES if path.suffix == ".c"]
    taken = sources.c_files(ROOT)
    assert sorted(taken) == there
    assert sources.kernels(ROOT) == [name(path) for path in KERNELS]
    layers = [sources.LAYERS.index(Path(f).parts[1]) for f in taken]
    assert layers == sorted(layers)


def test_no_two_sources_have_one_name():
    """Of all layers: `py_` before it names Python's side of one below."""
    names = [path.name for path in SOURCES if path.suffix == ".c"]
    assert sorted(names) == sorted(set(names))


def shared_names(text):
    """Of functions, data and those that macros make: what is not static."""
    yield from re.findall(
        r"^(?!(?:static|return|typedef)\b)[A-Za-z_][\w *]*\n(\w+)\(",
        text,
        re.MULTILINE,
    )
    for line in re.findall(r"^\s*extern\b([^;]*);", text, re.MULTILINE):
        yield from re.findall(r"(?<!#)\b(\w+)(?:\[\w*\])?\s*(?:,|$)", line)
    yield from re.findall(
        r"^(?!static\b|typedef\b)(?:\w+[ *]+)+(\w+)(?:\[.*\])? =",
        text,
        re.MULTILINE,
    )
    yield from re.findall(r"\b(wm_\w+)##", text)


@of_each(SOURCES)
def test_names_tell_the_top_layer_from_those_below(path):
    names = set(shared_names(path.read_text())) - {"PyInit__core"}
    on_top = {each for each in names if each.startswith("wm_py_")}
    assert on_top == (names if "python" in path.parts else set())


@pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None,
    reason="no checkout of git",
)
def test_git_ignores_no_source():
    """A folder `core` is not what a crash leaves."""
    names = [name(path) for path in (*SOURCES, *KERNELS)]
    command = ["git", "check-ignore", "--no-index", *names]
    found = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert found.stdout.decode().split() == []
    assert found.returncode == 1  # none; an error is 128


@of_each(SOURCES)
def test_no_private_name_of_python_is_used(path):
    assert not re.findall(r"\b_Py\w+", path.read_text())


@of_each([*SOURCES, *KERNELS])
def test_first_line_of_c_is_the_licence(path):
    with path.open() as file:
        assert file.readline() == "// SPDX-License-Identifier: BSD-3-Clause\n"


@of_each([*SOURCES, *KERNELS])
def test_file_is_small(path):
    lines = len(path.read_text().splitlines())
    assert lines <= (200 if path.suffix == ".h" else 800)


@of_each(SOURCES)
def test_driver_is_called_through_the_checking_wrapper(path):
    """No cuXyz() is called by its linked name: libcuda is not linked."""
    text = re.sub(r"//.*|/\*.*?\*/|\"[^\"\n]*\"", "", path.read_text())
    assert not re.findall(r"(?<![\w.])cu[A-Z]\w+\s*\(", text)


@of_each(SOURCES)
def test_locks_are_taken_without_the_gil(path):
    """All but wm_lock() itself, which lets go of it, leave that to it."""
    if path.name != "lock.c":
        assert "pthread_mutex_lock(" not in path.read_text()


# Of messages, of collectives, of neighbours, and of graphs.
SHARED_WORDS = {
    "slot.c": "ready|posted|staged|failed|taken|answer|submitted|claim|push",
    "barrier.c": "arrived",
    "stream_words.c": "streams|round|epochs",
    "epochs.c": "post|completion",
    "signature.c": "mark|block|failure|captures",
    "graph_memory.c": "begun",
}


@of_each(SOURCES)
def test_shared_words_are_written_in_one_file(path):
    """Streams' writes, too; src/cuda/word.c is how."""
    text = path.read_text()
    for owner, words in SHARED_WORDS.items():
        written = rf"atomic_(?!load)\w+\(&[^,;]*->({words})\b"
        assert path.name == owner or not re.search(written, text), owner
    if path.name not in SHARED_WORDS and "cuda" not in path.parts:
        assert "wm_word_write(" not in text and "wm_word_batch(" not in text


@of_each(PYTHON)
def test_python_module_says_what_it_is(path):
    tree = ast.parse(path.read_text())
    assert not tree.body or ast.get_docstring(tree), "no module docstring"


def public_objects():
    import warpmpi

    for public in warpmpi.__all__:
        thing = getattr(warpmpi, public)
        yield public, thing
        if inspect.isclass(thing):
            for attribute, value in vars(thing).items():
                if not attribute.startswith("_"):
                    yield f"{public}.{attribute}", value


def test_everything_public_is_documented():
    undocumented = [
        public
        for public, thing in public_objects()
        if (callable(thing) or inspect.isdatadescriptor(thing))
        and not (getattr(thing, "__doc__", None) or "").strip()
    ]
    assert not undocumented


def public_calls():
    """Functions, methods and constructors, inherited ones of ours too."""
    import warpmpi

    for public in warpmpi.__all__:
        thing = getattr(warpmpi, public)
        if not inspect.isclass(thing):
            if callable(thing):
                yield public, thing
            continue
        if not issubclass(thing, Exception):  # the library makes those
            yield public, thing
        for attribute in dir(thing):
            owner = next(
                (each for each in thing.__mro__ if attribute in vars(each)),
                type,
            )
            ours = owner.__module__.split(".")[0] == "warpmpi"
            if ours and not attribute.startswith("_"):
                value = getattr(thing, attribute)
                if callable(value):
                    yield f"{public}.{attribute}", value


def test_everything_callable_has_a_signature():
    """What help() and editors show; defaults are values, not names."""
    unknown = []
    for public, call in public_calls():
        try:
            inspect.signature(call)
        except ValueError:
            unknown.append(public)
    assert not unknown


def test_everything_public_is_of_the_package():
    import warpmpi

    others = {
        public: thing.__module__
        for public, thing in vars(warpmpi).items()
        if public in warpmpi.__all__
        and callable(thing)
        and thing.__module__ != "warpmpi"
    }
    assert not others
    for public in ("array", "install", "Comm", "Request"):  # pickled by name
        thing = getattr(warpmpi, public)
        assert pickle.loads(pickle.dumps(thing)) is thing


def test_defaults_in_signatures_are_those_of_mpi():
    from mpi4py import MPI

    import warpmpi as wm

    for call in (wm.Comm.Recv, wm.StreamComm.Irecv, wm.Message.Probe):
        parameters = inspect.signature(call).parameters
        assert parameters["source"].default == MPI.ANY_SOURCE
        assert parameters["tag"].default == MPI.ANY_TAG
    parameters = inspect.signature(wm.Prequest.Pready_range).parameters
    assert list(parameters) == ["self", "partition_low", "partition_high"]


def test_all_names_exist_and_once():
    import warpmpi

    assert len(set(warpmpi.__all__)) == len(warpmpi.__all__)
    for public in warpmpi.__all__:
        assert hasattr(warpmpi, public), public


def test_functions_that_the_design_names_are_there():
    text = (ROOT / "docs" / "design.md").read_text()
    words = "".join(path.read_text() for path in (*SOURCES, *KERNELS))
    named = set(re.findall(r"\bwm_\w*[a-z0-9]\b", text))
    assert named <= set(re.findall(r"\bwm_\w+", words))


def test_names_in_backticks_of_the_design_are_there():
    """All with an underscore, or as a part; NAME stands for any."""
    text = (ROOT / "docs" / "design.md").read_text()
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    folders = ("src", "warpmpi", "build_tools", "tests", "benchmarks")
    files = [ROOT / "setup.py"]
    for folder in folders:
        for kind in ("*.c", "*.h", "*.cu", "*.cpp", "*.py", "*.pyi"):
            files += (ROOT / folder).rglob(kind)
    words = "\n".join(path.name + path.read_text() for path in files)
    named = {
        name
        for quoted in re.findall(r"`([^`]+)`", text)
        for name in re.findall(r"\w*[a-z0-9A-Z]_\w+", quoted)
        if "NAME" not in name
    }
    assert len(named) > 300
    assert {name for name in named if name not in words} == set()


def test_static_functions_that_the_design_names_are_there():
    """`x` of `y.c`, or in it."""
    text = (ROOT / "docs" / "design.md").read_text()
    files = {path.name: path for path in (*SOURCES, *KERNELS)}
    named = re.findall(r"`([a-z]\w+)`,? (?:of|in)\s`(\w+\.(?:c|h|cu))`", text)
    assert len(named) > 10
    for function, file in named:
        assert re.search(rf"\b{function}\b", files[file].read_text()), function


# Files of partitioned messages, whose operation is a gate.
PARTITIONED = {"partitioned.c", "partitioned.h", "py_partitioned.c"}

# Threads of a warp, and elements of DLPack's vectors.
LANES = set(
    "dtype.c dtype.h ll.c array_dlpack.c dlpack.h raw.c view_dlpack.c "
    "ll128.cu ll128_line.h peer_sync.h peer_sync_host.h simple.cu".split()
)

# Words of our own that were given up for the field's (docs/design.md, Words),
# and files in which they are the names of something else.
GIVEN_UP = {
    "bay": set(),
    "bays": set(),
    "agree": set(),
    "agreed": set(),
    "agreement": set(),
    "book": set(),
    "boxes": set(),
    "buried": set(),
    "bury": set(),
    "crew": set(),
    "deaths": set(),
    "gate": PARTITIONED,
    "gates": set(),
    "gone": set(),
    "hall": set(),
    "halls": set(),
    "laid": set(),
    "lane": LANES,
    "lanes": LANES,
    "meet": set(),
    "meeting": {"thresholds.h"},  # a setting
    "meets": set(),
    "lockstep": set(),
    "mail": {"kernels.h", "eager_ll.cu"},  # kernels that golden traces name
    "mailbox": set(),
    "piece": set(),
    "pieces": {"elements.c"},  # in a text
    "piped": set(),
    "owed": set(),
    "pipes": set(),
    "points": {"py_thresholds.c", "thresholds.c"},  # what users call these
    "poke": set(),
    "slab": {"block.c", "heap.c", "heap.h"},  # of the allocator
    "slabs": set(),
    "spares": set(),
    "stash": set(),
    "stashed": set(),
    "trail": set(),
    "twin": set(),
    "twins": set(),
    "wm_watch": set(),
    "wm_way": set(),
    "wm_ways": set(),
}


# Likewise, of words that are English: no file and no `wm_` begins with one.
GIVEN_UP_FIRST = set(
    "again later native near part repeated said spread told".split()
)


@of_each([*SOURCES, *KERNELS])
def test_names_are_the_words_of_the_field(path):
    """No word of an identifier is a given-up one; comments may be English.

    A word that is English refuses names alone that begin with it: wm_watch.
    """
    code = re.sub(r"//.*", "", path.read_text()).lower()
    words = set(re.findall(r"[^\W_]+", code)) | set(path.stem.split("_"))
    words |= set(re.findall(r"\bwm_[^\W_]+", code))
    for word, others in GIVEN_UP.items():
        assert word not in words or path.name in others, word
    firsts = set(re.findall(r"\bwm_([a-z0-9]+)", code))
    firsts.add(path.stem.split("_")[0])
    assert not firsts & GIVEN_UP_FIRST, firsts & GIVEN_UP_FIRST


MENTION = r"(?<![\w/.])src/[\w/]+(?:\.[a-z]+)?(?![\w*])"


@of_each([*DOCUMENTS, *SOURCES, *KERNELS])
def test_paths_of_sources_lead_somewhere(path):
    """In documents and in comments."""
    for mention in re.findall(MENTION, path.read_text()):
        assert (ROOT / mention).exists() or "NAME" in mention, mention


@of_each([ROOT / "docs" / "design.md"])
def test_sources_that_the_design_names_are_there(path):
    """By their last name only: `stats.c`."""
    there = {each.name for each in (*SOURCES, *KERNELS)}
    named = set(re.findall(r"`(\w+\.(?:c|h|cu))`", path.read_text()))
    assert named <= there | {"NAME.cu"}


def anchors(path):
    """The names that GitHub gives a file's headings."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles
    }


@of_each(DOCUMENTS)
def test_links_of_the_documents_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if not link.startswith("http"):
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_figures_of_the_readme_are_those_of_the_measurements():
    text = (ROOT / "README.md").read_text()
    printed = r"```text\n.*?```"  # by a program, on the day of its run
    text = re.sub(printed, "", text, flags=re.DOTALL)
    figures = re.findall(r"([\d.,]+) us", text)
    measured = (ROOT / "docs" / "performance.md").read_text()
    assert figures
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", measured)


def test_the_library_has_the_kernels():
    """Fat binaries, one a file, aligned as the driver wants them."""
    import warpmpi

    library = Path(warpmpi._core.__file__).with_name("_kernels.so")
    image = library.read_bytes()
    starts = [m.start() for m in re.finditer(b"\x50\xed\x55\xba", image)]
    assert len(starts) == len(KERNELS)
    assert all(start % 16 == 0 for start in starts)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or platform.machine() != "x86_64",
    reason="src/cuda/glibc.h is for glibc on x86-64",
)
def test_the_libraries_run_on_glibc_2_28():
    """A new function of glibc, or a new version of one, wants a line there."""
    import warpmpi

    folder = Path(warpmpi._core.__file__).parent
    for library in folder.glob("*.so"):
        text = library.read_bytes()
        if b"__asan_init" in text:
            continue  # built to find faults, not to be given away
        needed = re.findall(rb"\0GLIBC_2\.(\d+)", text)
        assert needed or library.name == "_kernels.so"
        assert all(int(version) <= 28 for version in needed), library


def test_versions_agree():
    import warpmpi

    text = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"', text, re.MULTILINE)[1]
    assert warpmpi.__version__ == version
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {version}" in changelog


def test_modules_are_private():
    import warpmpi

    folder = ROOT / "warpmpi"
    public = {
        path.stem
        for path in folder.iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").is_file())
        and not path.name.startswith("_")
    }
    assert public == {"warp"}  # device functions, which import Warp
    modules = {
        name
        for name, value in vars(warpmpi).items()
        if inspect.ismodule(value) and not name.startswith("_")
    }
    assert modules <= public


def test_install_is_the_function_whatever_is_imported():
    import warpmpi

    find = importlib.machinery.PathFinder.find_spec
    assert find("warpmpi._install", warpmpi.__path__)
    assert not find("warpmpi.install", warpmpi.__path__)
    assert inspect.isfunction(warpmpi.install)


def test_setup_lists_every_package():
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^packages = (\[.*\])$", text, re.MULTILINE)[1]
    there = [
        ".".join(path.relative_to(ROOT).parent.parts)
        for path in (ROOT / "warpmpi").rglob("__init__.py")
    ]
    assert sorted(ast.literal_eval(listed)) == sorted(there)


def names_in(path, pattern):
    return set(re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE))


def test_every_collective_has_a_call_of_mpi():
    """What the table of collectives cannot give."""
    coll = "src/comm/coll"
    rows = re.findall(
        r"^    X\((\w+), (\w+),? (I\w+),",
        (ROOT / coll / "call/coll_table.h").read_text(),
        re.MULTILINE,
    )
    kinds = {kind for kind, _, _ in rows} - {"BARRIER"}
    by_mpi = names_in(f"{coll}/mpi/by_mpi.c", r"^        CASE\((\w+),")
    assert len(kinds) > 0
    assert by_mpi == kinds
    for kind, name, begun in rows:
        assert kind == name.upper()
        assert begun == f"I{name[0].lower()}{name[1:]}"
