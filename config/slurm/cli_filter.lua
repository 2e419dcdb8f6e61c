-- Tells whoever calls sbatch at a terminal, in some partitions, when and where the job is likely to start, what it costs
-- and what is left of its budgets, or why it does not start. Needs CliFilterPlugins=lua. It runs in sbatch, not in
-- slurmctld, changes nothing and refuses nothing: it is silent where burstd does not answer in time. Without a terminal
-- (scripts, cron, pipes) and with --quiet nothing is asked.
--
-- Lies beside slurm.conf, on each host where users call sbatch. A site with a cli_filter.lua of its own puts this file
-- beside it as burstd_cli_filter.lua and calls it last thing in two of its functions:
--   slurm_cli_pre_submit: burstd_cli_filter = burstd_cli_filter or dofile("/etc/slurm/burstd_cli_filter.lua")
--                         burstd_cli_filter.pre_submit(options)
--   slurm_cli_post_submit: burstd_cli_filter.post_submit(offset, job_id)

-- Partitions as users name them: { "burst" }. "" stands for jobs that name none.
local partitions = {}

-- So long a submission may wait for the answer, and sbatch --test-only.
local seconds, test_seconds = 2, 5

-- Where burstctl is. Empty: the first of these folders that has it.
local client = ""
local folders = { "/opt/burstd/bin", "/usr/bin", "/usr/local/bin" }

-- Whether a component of the job names one of the partitions.
local wanted = false

local function quoted(text)
  return "'" .. string.gsub(tostring(text), "'", "'\\''") .. "'"
end

local function path_of_client()
  if client ~= "" then
    return client
  end
  for _, folder in ipairs(folders) do
    local file = io.open(folder .. "/burstctl")
    if file then
      file:close()
      return folder .. "/burstctl"
    end
  end
  return "burstctl"
end

-- Writes burstctl's answer to standard error, if that is a terminal. KILL: whatever burstctl waits for.
local function tell(limit, words)
  os.execute(
    string.format(
      "test -t 2 && exec timeout --foreground -s KILL %d %s quote --brief %s </dev/null >&2 2>/dev/null",
      limit,
      quoted(path_of_client()),
      words
    )
  )
end

-- The words of this sbatch.
local function own_words()
  local file, words = io.open("/proc/self/cmdline"), {}
  for word in string.gmatch(file and file:read("*a") or "", "(%Z*)%z") do
    words[#words + 1] = quoted(word)
  end
  return table.concat(words, " ", 2)
end

local function pre_submit(options)
  if options["type"] ~= "sbatch" or options["quiet"] ~= "0" then
    return
  end
  for _, name in ipairs(partitions) do
    if string.find("," .. (options["partition"] or "") .. ",", "," .. name .. ",", 1, true) then
      wanted = true
    end
  end
  if wanted and options["test-only"] == "set" then
    wanted = false
    tell(test_seconds, own_words())
  end
end

local function post_submit(offset, job_id)
  if wanted and offset == 0 then
    tell(seconds, "--job " .. string.format("%d", job_id))
  end
end

-- Called by a site's own cli_filter.lua: only the functions are handed over.
if slurm_cli_pre_submit then
  return { pre_submit = pre_submit, post_submit = post_submit }
end

function slurm_cli_setup_defaults()
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options)
  pre_submit(options)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id)
  post_submit(offset, job_id)
  return slurm.SUCCESS
end

return slurm.SUCCESS
