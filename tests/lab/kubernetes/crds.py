"""OpenShift's own kinds, as far as burst nodes meet them: CustomResourceDefinitions with schemas.

What the fields are: https://docs.openshift.com/container-platform/4.14/rest_api/index.html
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
YES: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "integer", "format": "int64"}
ANY: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXTS: Schema = {"type": "array", "items": TEXT}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _choice(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


_REFERENCE = _object(("kind", "name"), kind=TEXT, name=TEXT, namespace=TEXT)
_ROUTE = _object(
    spec=_object(
        ("to",),
        host={**TEXT, "maxLength": 253},
        path={**TEXT, "pattern": "^/"},
        to=_object(("kind", "name"), kind=_choice("Service", ""), name={**TEXT, "minLength": 1}, weight=NUMBER),
        port=_object(("targetPort",), targetPort={"x-kubernetes-int-or-string": True}),
        tls=_object(
            ("termination",),
            termination=_choice("edge", "reencrypt", "passthrough"),
            insecureEdgeTerminationPolicy=_choice("Allow", "Disable", "None", "Redirect", ""),
            certificate=TEXT,
            key=TEXT,
            caCertificate=TEXT,
            destinationCACertificate=TEXT,
        ),
        wildcardPolicy=_choice("None", "Subdomain", ""),
        alternateBackends=_list(ANY),
    ),
    status=_object(ingress=_list(ANY)),
)
_PROJECT = _object(spec=_object(finalizers=TEXTS), status=_object(phase=TEXT, conditions=_list(ANY)))
_IMAGE_ITEM = _object(
    ("created", "dockerImageReference", "image", "generation"),
    created={"type": "string", "format": "date-time"},
    dockerImageReference=TEXT,
    image=TEXT,
    generation=NUMBER,
)
_IMAGE_STREAM = _object(
    spec=_object(
        dockerImageRepository=TEXT,
        lookupPolicy=_object(("local",), local=YES),
        tags=_list(_object(("name",), **{"name": TEXT, "from": _REFERENCE, "importPolicy": ANY,
                                         "referencePolicy": ANY, "annotations": ANY, "generation": NUMBER})),
    ),
    status=_object(
        dockerImageRepository=TEXT,
        publicDockerImageRepository=TEXT,
        tags=_list(_object(("tag", "items"), tag=TEXT, items=_list(_IMAGE_ITEM), conditions=_list(ANY))),
    ),
)  # fmt: skip
_BUILD_CONFIG = _object(
    spec=_object(
        ("strategy",),
        source={**ANY, "properties": {"type": _choice("Git", "Dockerfile", "Binary", "Image", "None"),
                                      "dockerfile": TEXT, "contextDir": TEXT}},
        strategy={**ANY, "properties": {"type": _choice("Docker", "Source", "Custom", "JenkinsPipeline")}},
        output=_object(to=_REFERENCE, pushSecret=_object(name=TEXT), imageLabels=_list(ANY)),
        triggers=_list(_object(("type",), type=TEXT, imageChange=ANY, github=ANY, generic=ANY)),
        runPolicy=_choice("Parallel", "Serial", "SerialLatestOnly"),
        resources=ANY,
        nodeSelector={"type": "object", "additionalProperties": TEXT, "nullable": True},
        serviceAccount=TEXT,
        completionDeadlineSeconds=NUMBER,
        successfulBuildsHistoryLimit=NUMBER,
        failedBuildsHistoryLimit=NUMBER,
    ),
    status=_object(lastVersion=NUMBER),
)  # fmt: skip
_RANGES = _list(_object(min=NUMBER, max=NUMBER))
_SCC = _object(
    (
        "allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID", "allowHostPorts",
        "allowPrivilegedContainer", "readOnlyRootFilesystem",
    ),
    **dict.fromkeys(
        (
            "allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID", "allowHostPorts",
            "allowPrivilegedContainer", "allowPrivilegeEscalation", "defaultAllowPrivilegeEscalation",
            "readOnlyRootFilesystem",
        ),
        YES,
    ),
    **{
        name: {**TEXTS, "nullable": True}
        for name in (
            "allowedCapabilities", "defaultAddCapabilities", "requiredDropCapabilities", "seccompProfiles", "volumes",
            "users", "groups", "allowedUnsafeSysctls", "forbiddenSysctls",
        )
    },
    priority={"type": "integer", "format": "int32", "nullable": True},
    runAsUser=_object(
        ("type",), type=_choice("MustRunAs", "MustRunAsRange", "MustRunAsNonRoot", "RunAsAny"), uid=NUMBER,
        uidRangeMin=NUMBER, uidRangeMax=NUMBER,
    ),
    seLinuxContext=_object(("type",), type=_choice("MustRunAs", "RunAsAny"), seLinuxOptions=ANY),
    fsGroup=_object(("type",), type=_choice("MustRunAs", "RunAsAny"), ranges=_RANGES),
    supplementalGroups=_object(("type",), type=_choice("MustRunAs", "RunAsAny"), ranges=_RANGES),
)  # fmt: skip


def _definition(
    group: str, kind: str, plural: str, schema: Schema, *, short: str = "", cluster: bool = False
) -> dict[str, Any]:
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, the lab's own"},
        },
        "spec": {
            "group": group,
            "scope": "Cluster" if cluster else "Namespaced",
            "names": {**names, "shortNames": [short]} if short else names,
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    **({"subresources": {"status": {}}} if "status" in schema["properties"] else {}),
                }
            ],
        },
    }


DEFINITIONS = (
    _definition("route.openshift.io", "Route", "routes", _ROUTE),
    _definition("project.openshift.io", "Project", "projects", _PROJECT, cluster=True),
    _definition("image.openshift.io", "ImageStream", "imagestreams", _IMAGE_STREAM, short="is"),
    _definition("build.openshift.io", "BuildConfig", "buildconfigs", _BUILD_CONFIG, short="bc"),
    _definition(
        "security.openshift.io", "SecurityContextConstraints", "securitycontextconstraints", _SCC, short="scc",
        cluster=True,
    ),
)  # fmt: skip


def paths() -> list[str]:
    """Where the API serves lists of these kinds."""
    return [f"/apis/{one['spec']['group']}/v1/{one['spec']['names']['plural']}" for one in DEFINITIONS]
