-- Adds the events of a batch to an asynq queue: all of them or none, and each at most once.
-- It writes the keys that asynq's own client writes (v0.26, enqueueCmd in
-- internal/rdb/rdb.go). stream.lua says why the own marker is written last.
--
-- KEYS  1    the queue's list of pending ids, asynq:{QUEUE}:pending
--       2    this group_id's marker
--       3..  the markers of its origins, the group_ids the events had before
-- ARGV  1    the time to live of a marker, in milliseconds
--       2    "sent TEMPLATE" or the names of the events, see markers.lua
--       3    the prefix of the keys of the queue's tasks, asynq:{QUEUE}:t:
--       4    the time, in nanoseconds since 1970
--       5..  for each event its task's id and its encoded task
--
-- asynq deletes a task when it is done; the marker remains. A task that exists already is
-- the same event only if it was added under this group_id or one of its origins, which the
-- field relay_group_id says. Otherwise a database used the event's id before (TRUNCATE
-- RESTART IDENTITY, a failover, rows put back), and the event becomes the task ID:GROUP_ID.
--
-- Returns what stream.lua returns.

local pending, own = KEYS[1], KEYS[2]
local window, sent, prefix, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ids, event = {}, 0 -- the written tasks; position of the current event
local pushed = 0         -- how many of them are in the list
local group_ids = {}     -- the own one first

local function mark(key, value)
  call('SET', key, value, 'PX', window)
end

-- free_id returns the id to add the event under, or nil if its task exists.
local function free_id(id)
  if call('EXISTS', prefix .. id) == 0 then
    return id
  end
  local added_under = call('HGET', prefix .. id, 'relay_group_id')
  for _, group_id in ipairs(group_ids) do
    if added_under == group_id or call('EXISTS', prefix .. id .. ':' .. group_id) == 1 then
      return nil
    end
  end
  return id .. ':' .. group_ids[1]
end

-- renamed returns the encoded task with another id: the last value of field 3 counts.
local function renamed(task, id)
  local length = string.char(#id % 128)
  if #id > 127 then
    length = string.char(#id % 128 + 128, math.floor(#id / 128))
  end
  return task .. '\26' .. length .. id
end

local function send()
  local markers = call('MGET', unpack(KEYS, 2))
  if is_void(markers[1]) then
    return 'fenced'
  end
  local all, value, present = compare(markers, sent)
  if all then
    mark(own, value) -- as in stream.lua
    return 'known'
  end
  for i = 3, #KEYS do
    mark(KEYS[i], void(markers[i - 1]))
  end

  for i = 2, #KEYS do
    group_ids[i - 1] = string.sub(KEYS[i], -36) -- a marker's name ends in it
  end
  for i = 5, #ARGV, 2 do
    event = event + 1
    local id, task = not present[event] and free_id(ARGV[i]), ARGV[i + 1]
    if id then
      if id ~= ARGV[i] then
        task = renamed(task, id)
      end
      ids[#ids + 1] = id
      call('HSET', prefix .. id, 'msg', task, 'state', 'pending', 'pending_since', now,
        'relay_group_id', group_ids[1])
    end
  end
  event = 0
  for from = 1, #ids, 1000 do -- unpack is limited to a few thousand values
    local to = math.min(from + 999, #ids)
    call('LPUSH', pending, unpack(ids, from, to))
    pushed = to
  end

  mark(own, value)
  return 'added'
end

local ok, answer = pcall(send)
if ok then
  return {answer}
end

-- Nothing else ran, so the last ids in the list are the pushed ones.
local function undo()
  for _ = 1, pushed do
    call('LPOP', pending)
  end
  for _, id in ipairs(ids) do
    call('DEL', prefix .. id)
  end
end

local function text(err)
  return type(err) == 'table' and err.err or err
end

local message = text(answer)
if #ids > 0 then
  local done, err = pcall(undo)
  if not done then
    message = message .. '; events added before remain: ' .. text(err)
  end
end
return {'failed', event, message}
