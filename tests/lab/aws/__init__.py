"""A mock of EC2 and its neighbours: moto behind a server of ours. ``mock.Ec2Mock`` starts one.

Every answer shows moto's own state. What moto gets wrong, and this closes:

- Client tokens of RunInstances, CreateFleet and CreateLaunchTemplate: the same answer to the same words, an error to
  others. A token's answer is kept for ever, also that of a fleet that came out empty.
- CreateFleet of type ``instant``: capacity by type and zone, several overrides, the ``Single...`` and
  ``MinTargetCapacity`` rules, errors beside success, tags of fleet, template and call (``launches``).
- RunInstances between MinCount and MaxCount, capacity reservations, capacity blocks.
- What launch templates say: metadata options, EFA, security groups, tags of volumes and network interfaces, block
  devices, instance profile, placement group, shutdown behaviour.
- Pages really end, their tokens are checked, and so are EC2's limits of a page (``lists``).
- An instance is pending, running, shutting-down, terminated, and in the end not listed (``life``). Its volumes and
  network interfaces go with it.
- Placement groups, capacity reservations, spot requests, console output, service quotas, price list (``extras``).
- Rights: a policy file decides every call, tag conditions and DryRun included (``iam``, ``rights``).
- Bad images, types, subnets; ids that are unknown or malformed; user data that is too long.

What remains, so that no test may rest on it:

- Signatures are not verified, only the access key is. Resource policies, role sessions and service-linked roles do not
  exist; nothing passes a role in truth.
- Figures of price list, spot prices and quotas are made up. Quotas are told, not kept; only the fault switch refuses.
- Where a fleet has a choice, ``prioritized`` ones go by priority and all others spread evenly: no market decides.
- A cluster placement group may span zones. Fleets cannot be described or deleted afterwards.
- Account-wide throttling does not exist: only armed faults refuse calls.
- No network: security groups, routes and public addresses have no effect. Volumes hold nothing.
- Network interfaces beyond the first show network card 0 in DescribeNetworkInterfaces.
- All other actions are moto's own, as they are.
"""
