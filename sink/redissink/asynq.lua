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
-- the same event, added by another batch.
--
-- Returns what stream.lua returns.

local pending, own = KEYS[1], KEYS[2]
local window, sent, prefix, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ids, event = {}, 0 -- the written tasks; position of the current event
local pushed = 0         -- how many of them are in the list

local function mark(key, value)
  call('SET', key, value, 'PX', window)
end

local function send()
  local markers = call('MGET', unpack(KEYS, 2))
  if is_void(markers[1]) then
    return 'fenced'
  end
  local all, value, present = compare(markers, sent)
  if all then
    if markers[1] ~= value then
      mark(own, value)
    end
    return 'known'
  end
  for i = 3, #KEYS do
    mark(KEYS[i], void(markers[i - 1]))
  end

  for i = 5, #ARGV, 2 do
    event = event + 1
    local key = prefix .. ARGV[i]
    if not present[event] and call('EXISTS', key) == 0 then
      ids[#ids + 1] = ARGV[i]
      call('HSET', key, 'msg', ARGV[i + 1], 'state', 'pending', 'pending_since', now)
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
