# SPDX-License-Identifier: BSD-3-Clause
"""The files of examples/cluster: what a cluster would refuse, or not do."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "cluster"
PAGE = (ROOT / "docs" / "clusters.md").read_text()

# The part of the CRD of kubeflow.org/v2beta1, and of Kubernetes' pods, that
# the manifest uses. A dict: the fields that there may be, "!" before those
# that must be. A list: of such values; a tuple: one of these; {None: …}: any
# names.
TEXT, NUMBER = str, int
QUANTITY = re.compile(r"\d+(\.\d+)?([KMGT]i?|m)?")
ENV = {"!name": TEXT, "value": TEXT}
CONTAINER = {
    "!name": TEXT,
    "!image": TEXT,
    "command": [TEXT],
    "args": [TEXT],
    "env": [ENV],
    "securityContext": {
        "runAsUser": NUMBER,
        "capabilities": {"add": [TEXT]},
    },
    "resources": {"limits": {None: QUANTITY}},
    "volumeMounts": [{"!name": TEXT, "!mountPath": TEXT}],
}
LABELS = {None: TEXT}
POD = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "!topologyKey": TEXT,
                    "labelSelector": {"matchLabels": LABELS},
                }
            ]
        }
    },
    "!containers": [CONTAINER],
    "volumes": [
        {
            "!name": TEXT,
            "emptyDir": {"medium": ("", "Memory"), "sizeLimit": QUANTITY},
        }
    ],
}
REPLICA = {
    "replicas": NUMBER,
    "restartPolicy": ("Never", "OnFailure"),
    "template": {"metadata": {"labels": LABELS}, "!spec": POD},
}
MPIJOB = {
    "!apiVersion": ("kubeflow.org/v2beta1",),
    "!kind": ("MPIJob",),
    "!metadata": {"!name": TEXT},
    "!spec": {
        "slotsPerWorker": NUMBER,
        "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
        "sshAuthMountPath": TEXT,
        "runPolicy": {
            "cleanPodPolicy": ("All", "Running", "None"),
            "backoffLimit": NUMBER,
        },
        "!mpiReplicaSpecs": {"!Launcher": REPLICA, "Worker": REPLICA},
    },
}


def wrong(value, schema, at=""):
    """Gives what in a value is not as the schema has it."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            yield f"{at}: no mapping"
            return
        fields = {
            name and name.lstrip("!"): each for name, each in schema.items()
        }
        for name in schema:
            if name and name[0] == "!" and name[1:] not in value:
                yield f"{at}.{name[1:]}: missing"
        for name, item in value.items():
            known = fields.get(name, fields.get(None))
            if known is None:
                yield f"{at}.{name}: unknown"
            else:
                yield from wrong(item, known, f"{at}.{name}")
    elif isinstance(schema, list):
        if not isinstance(value, list):
            yield f"{at}: no list"
            return
        for index, item in enumerate(value):
            yield from wrong(item, schema[0], f"{at}[{index}]")
    elif isinstance(schema, tuple):
        if value not in schema:
            yield f"{at}: {value!r} is none of {schema}"
    elif isinstance(schema, re.Pattern):
        if not schema.fullmatch(str(value)):
            yield f"{at}: {value!r} is no quantity"
    elif type(value) is not schema:
        yield f"{at}: {value!r} is no {schema.__name__}"


def manifest():
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((FOLDER / "mpijob.yaml").read_text())


def test_the_manifest_is_as_its_schema_has_it():
    assert list(wrong(manifest(), MPIJOB)) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda job: job["spec"].pop("mpiReplicaSpecs"), "Specs: missing"),
        (lambda job: job["spec"].update(slots=4), ".spec.slots: unknown"),
        (lambda job: job["spec"].update(slotsPerWorker="4"), "is no int"),
        (lambda job: job.update(kind="Job"), "is none of ('MPIJob',)"),
    ],
)
def test_a_wrong_manifest_is_found(change, told):
    job = manifest()
    change(job)
    (found,) = wrong(job, MPIJOB)
    assert told in found


def test_the_manifest_starts_a_rank_for_each_gpu_on_several_hosts():
    spec = manifest()["spec"]
    launcher, worker = (
        spec["mpiReplicaSpecs"][kind] for kind in ("Launcher", "Worker")
    )
    (starts,) = launcher["template"]["spec"]["containers"]
    (serves,) = worker["template"]["spec"]["containers"]
    gpus = serves["resources"]["limits"]["nvidia.com/gpu"]
    hosts = worker["replicas"]
    assert gpus == spec["slotsPerWorker"] and hosts > 1
    (script,) = starts["args"]
    runs = re.findall(r"mpirun -n (\d+) --map-by ppr:(\d+):node \$", script)
    assert runs == 2 * [(str(hosts * gpus), str(gpus))]
    assert f"--expect-hosts {hosts} --expect-ranks {hosts * gpus}" in script
    assert script.index("doctor") < script.index("program.py")
    variables = {each["name"]: each["value"] for each in starts["env"]}
    assert variables["PRTE_MCA_prte_default_hostfile"] == "/etc/mpi/hostfile"
    assert all(f"`{name}`" in PAGE for name in variables)
    (volume,) = worker["template"]["spec"]["volumes"]
    (mount,) = serves["volumeMounts"]
    assert mount == {"name": volume["name"], "mountPath": "/dev/shm"}
    assert volume["emptyDir"]["medium"] == "Memory"


def test_a_worker_has_a_machine_of_its_own():
    worker = manifest()["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    (rule,) = worker["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    labels = worker["metadata"]["labels"]
    assert rule["labelSelector"]["matchLabels"] == labels


def test_ranks_find_python_and_nccl_without_the_environment_of_the_image():
    """A session of sshd has neither ENV nor the pod's `env`."""
    image = (FOLDER / "Dockerfile").read_text()
    python = "/opt/warpmpi/bin/python"
    assert (
        f"RUN python3 -m venv {Path(python).parent.parent}"
        in (ROOT / "Dockerfile").read_text()
    )
    assert f"{python} -m pip install --no-cache-dir nvidia-nccl" in image
    launcher = manifest()["spec"]["mpiReplicaSpecs"]["Launcher"]
    (script,) = launcher["template"]["spec"]["containers"][0]["args"]
    assert f"python={python}\n" in script
    assert not re.search(r"[^$=/]\bpython -m", script)
    # sshd takes the first SetEnv alone.
    (path,) = re.findall(r"'SetEnv PATH=(\S+)'", image)
    assert path.split(":")[0] == str(Path(python).parent)
    (worker,) = manifest()["spec"]["mpiReplicaSpecs"]["Worker"]["template"][
        "spec"
    ]["containers"]
    assert "env" not in worker
    assert "WARPMPI_REQUIRE" not in script  # its MPI takes no GPU memory


def shell(text):
    return subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, timeout=30
    )


@pytest.mark.parametrize(
    ("status", "goes_on"), [(0, True), (1, True), (2, False)]
)
def test_jobs_go_on_after_warnings_alone(tmp_path, status, goes_on):
    """Of the doctor, whose status a launcher passes on."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "activate").write_text("")
    start = (
        'start() { case "$*" in '
        f"*doctor*) return {status};; *program.py*) echo went on;; esac; }}\n"
        'srun() { start "$@"; }\nmpirun() { start "$@"; }\n'
        f"cd {tmp_path}\nSLURM_JOB_NUM_NODES=2 SLURM_NTASKS=8\n"
        "SLURM_CPUS_PER_TASK=8\n"
    )
    done = shell(start + (FOLDER / "job.slurm").read_text())
    assert ("went on" in done.stdout) == goes_on, done.stderr
    launcher = manifest()["spec"]["mpiReplicaSpecs"]["Launcher"]
    (container,) = launcher["template"]["spec"]["containers"]
    done = shell(start + container["args"][0])
    assert ("went on" in done.stdout) == goes_on, done.stderr


def test_the_script_shows_all_gpus_to_all_ranks():
    script = (FOLDER / "job.slurm").read_text()
    settings = dict(
        re.findall(r"^#SBATCH --(\S+?)=(\S+)", script, re.MULTILINE)
    )
    assert settings["gpus-per-node"] == settings["ntasks-per-node"]
    assert "--gpus-per-task" not in script
    assert "srun --mpi=pmix --gpu-bind=none" in script
    # Since Slurm 22.05 srun does not take them from sbatch.
    assert "--cpus-per-task=$SLURM_CPUS_PER_TASK --cpu-bind=cores" in script
    for line in re.findall("^srun.*", PAGE, re.MULTILINE):
        assert "--cpus-per-task=" in line


def test_every_srun_of_the_pages_says_how_ranks_meet():
    """Many sites have no PMI unless --mpi asks for one."""
    pages = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    lines = re.findall(r"^ *srun .*python.*", "\n".join(pages), re.MULTILINE)
    assert len(lines) > 2
    for line in lines:
        assert "--mpi=" in line and "--gpus-per-task" not in line


def test_the_page_names_files_and_findings_that_there_are():
    for path in re.findall(r"\(\.\./(examples/\S+?)\)", PAGE):
        assert (ROOT / path).exists(), path
    rules = "".join(
        path.read_text() for path in (ROOT / "warpmpi/_doctor").glob("*.py")
    )
    for name in (
        *("other-launcher", "mpi-init", "hidden-gpus", "unconfined-gpus"),
        *("orte", "one-core"),
    ):
        assert f"`{name}`" in PAGE
        assert f'"{name}"' in rules
