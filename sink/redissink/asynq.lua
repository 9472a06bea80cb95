-- Adds one batch's events to one queue of asynq's: all of them or none, and at most once.
-- What is written, and in which order it is taken, is asynq's own way (v0.26, enqueueCmd in
-- internal/rdb/rdb.go). Why the own marker comes last is told in stream.lua.
--
-- KEYS  1    the queue's list of pending ids, asynq:{QUEUE}:pending
--       2    this group_id's marker
--       3..  the markers of its origins, the group_ids the events had before
-- ARGV  1    how long a marker lives, in milliseconds
--       2    what a marker says of a group_id that was sent, "sent TEMPLATE", or the
--            names of the events: see markers.lua
--       3    what the keys of the queue's tasks begin with, asynq:{QUEUE}:t:
--       4    the time, in nanoseconds since 1970
--       5..  for each event its task's id and encoded text
--
-- A marker outlives the task, which asynq deletes when it is done. An id that is there
-- already is its event: another batch of the relay's has added it.
--
-- Answers as stream.lua does.

local pending, own = KEYS[1], KEYS[2]
local window, sent, prefix, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ids, event = {}, 0 -- the ids whose tasks were written; at which event that is
local pushed = 0         -- how many of them are in the list

local function mark(key, what)
  call('SET', key, what, 'PX', window)
end

local function send()
  local markers = call('MGET', unpack(KEYS, 2))
  if is_void(markers[1]) then
    return 'fenced'
  end
  local all, says, here = weigh(markers, sent)
  if all then
    if markers[1] ~= says then
      mark(own, says)
    end
    return 'known'
  end
  for i = 3, #KEYS do
    mark(KEYS[i], void(markers[i - 1]))
  end

  for i = 5, #ARGV, 2 do
    event = event + 1
    local key = prefix .. ARGV[i]
    if not here[event] and call('EXISTS', key) == 0 then
      ids[#ids + 1] = ARGV[i]
      call('HSET', key, 'msg', ARGV[i + 1], 'state', 'pending', 'pending_since', now)
    end
  end
  event = 0
  for from = 1, #ids, 1000 do -- unpack takes no more than some thousands
    local to = math.min(from + 999, #ids)
    call('LPUSH', pending, unpack(ids, from, to))
    pushed = to
  end

  mark(own, says)
  return 'added'
end

local ok, answer = pcall(send)
if ok then
  return {answer}
end

-- The script ran alone, so the last ids in the list are the ones it pushed.
local function take_back()
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

local what = text(answer)
if #ids > 0 then
  local done, why = pcall(take_back)
  if not done then
    what = what .. '; what was added before stays: ' .. text(why)
  end
end
return {'failed', event, what}
