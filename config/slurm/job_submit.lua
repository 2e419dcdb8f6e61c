-- Tells users of '#burst' lines that nobody reads. Has the scripts of jobs with '#BURST container' start in their image: their first line becomes burstd's. Stages the
-- working directory of every batch job in some partitions. Has jobs that require machines by their comment wait for burstd. Submits jobs of projects to their projects' partitions. Before Slurm 23.02, whose burst_buffer/lua does not say whose
-- job it is, sbatch also refuses input that its user may not read; without this file such a job is taken, and held with
-- the reason when its turn comes. Needs JobSubmitPlugins=lua.
--
-- Lies beside slurm.conf. A site with a job_submit.lua of its own puts this file beside it as burstd_job_submit.lua and
-- calls it first thing in its slurm_job_submit:
--   burstd_job_submit = burstd_job_submit or dofile("/etc/slurm/burstd_job_submit.lua")
--   if burstd_job_submit(job_desc, submit_uid, part_list) ~= slurm.SUCCESS then return slurm.ERROR end

-- Where burstd-stage is. Empty: the first of these folders that has it.
local client = ""
local folders = { "/opt/burstd/bin", "/usr/bin", "/usr/local/bin" }

-- Partitions whose nodes do not reach ports of the hosts where users call srun (a firewall, NAT): { "burst" }. Whoever
-- calls srun or salloc there is told what to do instead.
local unreached = {}

-- Partitions whose nodes do not show users' directories: { "burst-pods" }. A batch job there has its working directory
-- copied to its nodes and back, as if its script had the line '#BURST workdir'; with '#BURST workdir off' it has not.
-- Name the same ones in burstd.toml, as staging.workdir.partitions.
local staged = {}

-- Partitions in which jobs may require machines by their comment (policies.chain with "broker" in burstd.toml):
-- { "burst" }. Such a job gets a begin time that never comes, which burstd sets to now once Slurm knows where the job
-- must not start. Without it Slurm may start the job on a free node before burstd sees it.
local brokered = {}

-- Projects by their Slurm accounts, as 'burstctl slurm-config' has them: the site's partitions whose nodes they share,
-- whether quotas count shards of GPUs there, and the time limit of interactive jobs. A job there gets the pair of partitions of its account's project.
local projects = {}

-- burstd keeps those in force here, also what 'burstctl project' has made and changed: they count where this can be read.
-- It is in daemon.spool_dir of burstd.toml.
local projects_table = "/var/spool/burstd/projects.lua"

-- What Slurm gives for a time limit that nobody has set.
local NO_VAL = 4294967294

-- The state of a job that waits, as Slurm counts them.
local PENDING = 0

local function quoted(text)
  return "'" .. string.gsub(tostring(text), "'", "'\\''") .. "'"
end

local function path_of_client()
  if client ~= "" then
    return client
  end
  for _, folder in ipairs(folders) do
    local file = io.open(folder .. "/burstd-stage")
    if file then
      file:close()
      return folder .. "/burstd-stage"
    end
  end
  return "burstd-stage"
end

-- The directives of a job: those of --bb and --bbf count as well.
local function directives(job)
  local text = job.script or ""
  if (job.burst_buffer or "") ~= "" then
    -- Where Slurm puts them: after the first line.
    local first, rest = string.match(text, "^([^\n]*\n)(.*)$")
    text = (first or (text .. "\n")) .. job.burst_buffer .. "\n" .. (rest or "")
  end
  if string.find("\n" .. text, "\n#BURST", 1, true) then
    return text
  end
  return nil
end

-- The partitions of a job; part_list: what Slurm gives to slurm_job_submit, for its default one.
local function partitions_of(job, part_list)
  if (job.partition or "") ~= "" then
    return job.partition
  end
  for name, about in pairs(part_list or {}) do
    if about.flag_default == 1 or about.flag_default == true then
      return name
    end
  end
  return ""
end

-- Whether a job may start in this partition.
local function is_for(job, name, part_list)
  return string.find("," .. partitions_of(job, part_list) .. ",", "," .. name .. ",", 1, true) ~= nil
end

-- The first words of '#BURST' lines.
local directive_names = {}
for name in string.gmatch("stage_in stage_out dataset scratch checkpoint volume workdir container help", "%S+") do
  directive_names[name] = true
end
local MAX_TOLD = 5

-- Tells of lines that look like directives, and that Slurm and burstd do not read.
local function tell_of_unread_lines(job)
  local script = job.script or ""
  if not string.find(script, "#[ \t]*[Bb][Uu][Rr][Ss][Tt][ \t]") then
    return
  end
  local number, above_commands, told = 0, true, 0
  for line in string.gmatch(script .. "\n", "([^\n]*)\n") do
    number = number + 1
    above_commands = above_commands and (line == "" or string.sub(line, 1, 1) == "#")
    local mark, name = string.match(line, "^(#[ \t]*[Bb][Uu][Rr][Ss][Tt])[ \t]+([%a_]+)")
    if directive_names[name] and above_commands ~= (mark == "#BURST") then
      told = told + 1
      if told > MAX_TOLD then
        slurm.log_user("there are more such lines")
        return
      elseif above_commands then
        mark = string.gsub(mark, "[ \t]+", " ")
        slurm.log_user("line %d: '%s %s' is a comment, and nothing comes of it: write '#BURST %s'", number, mark, name, name)
      else
        slurm.log_user("line %d: nothing comes of '#BURST %s' below the first command: put it above", number, name)
      end
    end
  end
end

local function add_workdir(job, part_list)
  for _, name in ipairs(job.script and staged or {}) do
    local text = "\n" .. job.script .. "\n" .. (job.burst_buffer or "")
    if is_for(job, name, part_list) and not string.find(text, "\n#BURST[ \t]+workdir") then
      local before = job.burst_buffer or ""
      job.burst_buffer = (before == "" and "" or (before .. "\n")) .. "#BURST workdir"
      return
    end
  end
end

local YEAR = 365 * 86400

local function wait_for_burstd(job, part_list)
  if string.lower(string.sub(job.comment or "", 1, 6)) ~= "burst:" then
    return
  end
  for _, name in ipairs(brokered) do
    if is_for(job, name, part_list) and (job.begin_time or 0) <= os.time() then
      job.begin_time = os.time() + YEAR
    end
  end
end

-- Whether it is srun's or salloc's. Of a het job of sbatch the first component alone has the script, all have the
-- environment.
local function is_interactive(job)
  return not job.script and not (job.environment or {})["SLURM_SUBMIT_DIR"]
end

-- Whether Slurm may run the job again: a job that it preempts and may not run again is cancelled.
local function may_be_preempted(job)
  return not is_interactive(job) and job.requeue ~= 0
end

local function tell_interactive(job, part_list)
  for _, name in ipairs(is_interactive(job) and unreached or {}) do
    if is_for(job, name, part_list) then
      slurm.log_user(
        "srun does not work on the nodes of partition %s, which do not reach this host: submit 'sbatch -p %s --wrap "
          .. "\"sleep 4h\"' with your options, then enter the job with 'burstctl job shell JOB'",
        name,
        name
      )
    end
  end
end

local function limit_interactive(job, project)
  local limit = project.minutes
  if not limit or not is_interactive(job) then
    return
  end
  local wanted = job.time_limit or NO_VAL
  if wanted > limit then
    job.time_limit = limit
    if wanted ~= NO_VAL then
      slurm.log_user("interactive jobs of project %s run for %d minutes at most, and so does this one", project.name, limit)
    end
  end
end

-- The project for which this partition is, beyond its quota.
local function project_beyond_quota(name)
  for _, project in pairs(projects) do
    if name == "o-" .. project.name then
      return project
    end
  end
  return nil
end

local function names_in(partitions)
  local names = {}
  for name in string.gmatch(partitions, "[^,]+") do
    names[#names + 1] = name
  end
  return names
end

-- The project that the first of these partitions is for, beyond its quota, where all of them are such partitions.
local function only_beyond_quota(names)
  for _, name in ipairs(names) do
    if not project_beyond_quota(name) then
      return nil
    end
  end
  return project_beyond_quota(names[1])
end

-- What a job may say that it needs of GPUs.
local gpu_options = { "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }

-- Whether a job asks for what the project's quota is of, whole GPUs or also shards of them: what asks for none is
-- nowhere counted within a quota, and would preempt others without end.
local function asks_for_gpus(job, project)
  for _, option in ipairs(gpu_options) do
    local asked = job[option] or ""
    if string.find(asked, "gpu", 1, true) or (project.shards and string.find(asked, "shard", 1, true)) then
      return true
    end
  end
  return false
end

-- Puts the pair of partitions of its account's project in place of the site's; of a job without GPUs the second.
local function use_project(job, part_list)
  local account = (job.account or "") ~= "" and job.account or job.default_account or ""
  local project = projects[string.lower(account)]
  local asked, chosen = names_in(partitions_of(job, part_list)), {}
  local beyond = only_beyond_quota(asked)
  if beyond then
    local shared = next(beyond.shares) or "q-" .. beyond.name
    slurm.log_user(
      "partition o-%s is for what project %s runs beyond its quota, and not to be asked for alone: submit with '-p %s'",
      beyond.name,
      beyond.name,
      shared
    )
    return slurm.ERROR
  end
  if not project then
    return slurm.SUCCESS
  end
  local added = {}
  local function add(name)
    if not added[name] and (may_be_preempted(job) or name ~= "o-" .. project.name) then
      added[name] = true
      chosen[#chosen + 1] = name
    end
  end
  for _, name in ipairs(asked) do
    if project.shares[name] and asks_for_gpus(job, project) then
      add("q-" .. project.name)
      add("o-" .. project.name)
    elseif project.shares[name] and may_be_preempted(job) then
      add("o-" .. project.name)
    else
      add(name)
    end
  end
  if added["q-" .. project.name] or added["o-" .. project.name] then
    job.partition = table.concat(chosen, ",")
  end
  if added["q-" .. project.name] then
    limit_interactive(job, project)
  end
  return slurm.SUCCESS
end

local function read_projects()
  local is_read, found = pcall(dofile, projects_table)
  if is_read and type(found) == "table" then
    projects = found
  end
end

local function check(job, submit_uid, part_list)
  read_projects()
  tell_interactive(job, part_list)
  tell_of_unread_lines(job)
  add_workdir(job, part_list)
  wait_for_burstd(job, part_list)
  if use_project(job, part_list) ~= slurm.SUCCESS then
    return slurm.ERROR
  end
  local text = directives(job)
  if not text then
    return slurm.SUCCESS
  end
  -- Everybody sees the arguments of a program, so the folder goes another way.
  local place, input = os.tmpname(), os.tmpname()
  local file, folder = io.open(place, "w"), io.open(input, "w")
  if not file or not folder then
    slurm.log_user("the directives of this job cannot be checked: no room in /tmp on the machine of slurmctld")
    return slurm.ERROR
  end
  file:write(text)
  file:close()
  local info = {
    plugin = "job_submit",
    work_dir = job.work_dir,
    partition = partitions_of(job, part_list),
    array_inx = job.array_inx,
    min_nodes = job.min_nodes and string.format("%d", job.min_nodes),
  }
  for key, value in pairs(info) do
    folder:write("info." .. key .. "=" .. tostring(value) .. "\0")
  end
  folder:close()
  local words = { "exec", quoted(path_of_client()), "check", "-", quoted("script=" .. place) }
  words[#words + 1] = quoted("uid=" .. string.format("%d", job.user_id))
  words[#words + 1] = quoted("gid=" .. string.format("%d", job.group_id))
  local output, all = io.popen(table.concat(words, " ") .. " 2>&1 <" .. quoted(input)), nil
  if output then
    all = output:read("*a")
    output:close()
  end
  os.remove(place)
  os.remove(input)
  local word, said = string.match(all or "", "^(%l+)\n(.*)$")
  if word == "ok" then
    if job.script and string.find(said, "^#!") then
      job.script = said .. string.sub(job.script, (string.find(job.script .. "\n", "\n", 1, true)))
    end
    return slurm.SUCCESS
  end
  slurm.log_user("%s", said or (path_of_client() .. " cannot be run on the machine of slurmctld: " .. (all or "")))
  return slurm.ERROR
end

-- Called by a site's own job_submit.lua: only the function is handed over.
if slurm_job_submit then
  return check
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  return check(job_desc, submit_uid, part_list)
end

-- A user's change of a job's partitions is taken as a submission to them is; and a job that is not to run again leaves
-- the partition in which it may be preempted, or stays as it is where it runs there. An interactive job that waits gets
-- no longer time limit than it had got at once.
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  local forbids, partitions = job_desc.requeue == 0, job_desc.partition or ""
  local moves, wanted = partitions ~= "" or forbids, job_desc.time_limit or NO_VAL
  if modify_uid == 0 or not (moves or wanted ~= NO_VAL) then
    return slurm.SUCCESS
  end
  read_projects()
  local beyond = nil
  for _, name in ipairs(names_in(job_rec.partition or "")) do
    beyond = beyond or (project_beyond_quota(name) and name)
  end
  if forbids and beyond and job_rec.job_state ~= PENDING then
    slurm.log_user("this job runs, and may be in partition %s, where Slurm must be able to requeue it", beyond)
    return slurm.ERROR
  end
  local job = {
    account = job_desc.account or job_rec.account,
    partition = partitions ~= "" and partitions or job_rec.partition,
    script = job_rec.script,
    -- What was said of it at its submission is not shown here, but where it may run.
    requeue = (not forbids and (beyond or job_desc.requeue == 1)) and 1 or 0,
    time_limit = wanted ~= NO_VAL and wanted or job_rec.time_limit,
    -- As sbatch gives it to the later components of a het job, which have no script here either.
    environment = { SLURM_SUBMIT_DIR = (beyond or job_rec.het_job_offset ~= 0) and "" or nil },
  }
  wanted = job.time_limit
  for _, option in ipairs(gpu_options) do
    job[option] = job_rec[option]
  end
  if not moves then
    local project = projects[string.lower(job.account or "")]
    if project and is_for(job, "q-" .. project.name, part_list) then
      limit_interactive(job, project)
    end
  elseif use_project(job, part_list) ~= slurm.SUCCESS then
    return slurm.ERROR
  end
  if job.partition ~= (job_desc.partition or job_rec.partition) then
    job_desc.partition = job.partition
  end
  if job.time_limit ~= wanted then
    job_desc.time_limit = job.time_limit
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
