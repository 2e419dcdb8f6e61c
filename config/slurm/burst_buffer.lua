-- burstd's half of burst_buffer/lua. Lies beside slurm.conf, on the machines where slurmctld runs, with
-- burst_buffer.conf. There is nothing to decide here: each hook asks burstd through burstd-stage and gives its answer
-- to Slurm. Jobs without a #BURST line never come here.

-- Where burstd-stage is. Empty: the first of these folders that has it.
local client = ""
local folders = { "/opt/burstd/bin", "/usr/bin", "/usr/local/bin" }

-- What burstd is told of a job, by Slurm's names. Slurm 22.05 says nothing.
local wanted = { "array_job_id", "job_state" }
-- At sbatch, these too. Everybody sees the arguments of a program, so they go another way.
local private = { "account", "work_dir", "partition", "num_nodes" }

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

-- A file of Slurm's own with these of info in it, for the program's standard input; nil: there is no room for it.
local function input_of(names, info)
  local place = os.tmpname()
  local file = io.open(place, "w")
  if not file then
    return nil
  end
  for _, key in ipairs(names) do
    file:write("info." .. key .. "=" .. tostring(info[key] or "") .. "\0")
  end
  if not file:close() then
    os.remove(place)
    return nil
  end
  return place
end

-- Runs burstd-stage; the word and the text that it answers with. Lua 5.1 does not see its exit status.
local function ask(hook, values, info)
  local words, input = { "exec", quoted(path_of_client()), hook }, nil
  if hook == "check" and info then
    input = input_of(private, info)
    if not input then
      return "failed", "the directives of this job cannot be checked: no room in /tmp on the machine of slurmctld"
    end
    words[#words + 1] = "-"
  end
  for key, value in pairs(values) do
    words[#words + 1] = quoted(key .. "=" .. tostring(value))
  end
  if info then
    for _, key in ipairs(wanted) do
      local value = info[key]
      if value ~= nil then
        words[#words + 1] = quoted("info." .. key .. "=" .. tostring(value))
      end
    end
  end
  local output, all = io.popen(table.concat(words, " ") .. " 2>&1 <" .. quoted(input or "/dev/null")), nil
  if output then
    all = output:read("*a")
    output:close()
  end
  if input then
    os.remove(input)
  end
  local word, text = string.match(all or "", "^(%l+)\n(.*)$")
  if word == "ok" or word == "refused" or word == "busy" or word == "absent" then
    return word, text
  end
  return "failed", path_of_client() .. " cannot be run on the machine of slurmctld: " .. string.sub(all or "", 1, 500)
end

-- For hooks that end with yes or no.
local function settle(hook, values, info)
  local word, text = ask(hook, values, info)
  if word == "ok" then
    return slurm.SUCCESS, text
  end
  -- Slurm asks the test_ hook now and then, where its version has that.
  if word == "busy" and slurm.SLURM_BB_BUSY then
    return slurm.SUCCESS, ""
  end
  return slurm.ERROR, text
end

-- For hooks that Slurm polls.
local function poll(hook, values, info)
  local word, text = ask(hook, values, info)
  if word == "ok" then
    return slurm.SUCCESS, ""
  end
  if word == "refused" then
    return slurm.ERROR, text
  end
  return slurm.SUCCESS, slurm.SLURM_BB_BUSY
end

-- Before 23.02 Slurm leaves uid, gid and info out.
local function job(id, script, uid, gid)
  return { job = id, script = script, uid = uid, gid = gid, polls = slurm.SLURM_BB_BUSY and "yes" or "no" }
end

function slurm_bb_job_process(script, uid, gid, info)
  local id = string.match(script, "/job%.(%d+)/script$")
  return settle("check", { job = id, script = script, uid = uid, gid = gid }, info)
end

function slurm_bb_setup(id, uid, gid, pool, size, script, info)
  return settle("setup", job(id, script, uid, gid), info)
end

function slurm_bb_data_in(id, script, uid, gid, info)
  return settle("data_in", job(id, script, uid, gid), info)
end

function slurm_bb_test_data_in(id, script, uid, gid, info)
  return poll("test_data_in", job(id, script, uid, gid), info)
end

function slurm_bb_paths(id, script, file, uid, gid, info)
  return settle("paths", { job = id, script = script, file = file, uid = uid, gid = gid }, info)
end

function slurm_bb_pre_run(id, script, uid, gid, info)
  return settle("pre_run", job(id, script, uid, gid), info)
end

function slurm_bb_post_run(id, script, uid, gid, info)
  return settle("post_run", job(id, script, uid, gid), info)
end

function slurm_bb_data_out(id, script, uid, gid, info)
  return settle("data_out", job(id, script, uid, gid), info)
end

function slurm_bb_test_data_out(id, script, uid, gid, info)
  return poll("test_data_out", job(id, script, uid, gid), info)
end

function slurm_bb_job_teardown(id, script, hurry, uid, gid)
  return settle("teardown", { job = id, script = script, hurry = hurry, uid = uid, gid = gid })
end

-- scontrol show bbstat
function slurm_bb_get_status()
  local _, text = ask("status", {})
  return slurm.SUCCESS, text .. "\n"
end

-- burstd has no pools: how much may be staged is its own to say.
function slurm_bb_pools()
  return slurm.SUCCESS
end

-- Asked only where there are pools.
function slurm_bb_real_size()
  return slurm.SUCCESS
end
