-- For Slurm before 23.02, whose burst_buffer/lua does not say whose job it is: sbatch refuses input that its user may
-- not read. Needs JobSubmitPlugins=lua. Without it such a job is taken, and held with the reason when its turn comes.
--
-- Lies beside slurm.conf. A site with a job_submit.lua of its own puts this file beside it as burstd_job_submit.lua and
-- calls it first thing in its slurm_job_submit:
--   burstd_job_submit = burstd_job_submit or dofile("/etc/slurm/burstd_job_submit.lua")
--   if burstd_job_submit(job_desc, submit_uid) ~= slurm.SUCCESS then return slurm.ERROR end

-- Where burstd-stage is. Empty: the first of these folders that has it.
local client = ""
local folders = { "/opt/burstd/bin", "/usr/bin", "/usr/local/bin" }

-- Partitions whose nodes do not reach ports of the hosts where users call srun (a firewall, NAT): { "burst" }. Whoever
-- calls srun or salloc there is told what to do instead.
local unreached = {}

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
  local text = (job.script or "") .. "\n" .. (job.burst_buffer or "")
  if string.find("\n" .. text, "\n#BURST", 1, true) then
    return text
  end
  return nil
end

-- A job without a script is srun's or salloc's.
local function tell_interactive(job)
  for _, name in ipairs(job.script and {} or unreached) do
    if string.find("," .. (job.partition or "") .. ",", "," .. name .. ",", 1, true) then
      slurm.log_user(
        "srun does not work on the nodes of partition %s, which do not reach this host: submit 'sbatch -p %s --wrap "
          .. "\"sleep 4h\"' with your options, then enter the job with 'burstctl job shell JOB'",
        name,
        name
      )
    end
  end
end

local function check(job, submit_uid)
  tell_interactive(job)
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
  folder:write("info.work_dir=" .. tostring(job.work_dir or "") .. "\0")
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
  return check(job_desc, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
