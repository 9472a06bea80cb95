-- The markers of an address (a stream or queue). Every script that reads markers begins
-- with this file. A marker belongs to a group_id and has one of these values:
--
--   sent TEMPLATE  all events that the template assigns from the group to this address
--                  are present. Another template may assign other events to it, so it
--                  proves nothing under another template: the events are added, perhaps
--                  for the second time, but none is missing.
--   void           a later owner split the group and sends its events under other
--                  group_ids. A Send under this group_id is fenced.
--   sent,1,2,      the events 1 and 2 are present. This value is used where a projection
--                  makes topic and key anew for every attempt, because the same template
--                  may then assign other events to this address the next time.
--   void,1,2,      void, and the events 1 and 2 are present.

local call = redis.call

local function names_in(marker)
  return marker and string.match(marker, '^%l+(,.*)$')
end

local function is_void(marker)
  return marker and string.sub(marker, 1, 4) == 'void'
end

local function void(marker)
  return 'void' .. (names_in(marker) or '')
end

local function add_names(set, names)
  for name in string.gmatch(names or '', '[^,]+') do
    set[name] = true
  end
end

-- compare compares the markers, the group's own one first, with what is to be sent: "sent
-- TEMPLATE", or the events' names, ",1,2,". It returns whether all events are present, the
-- value of the own marker once they are, and by position (from 1) which are present now.
local function compare(markers, sent)
  if string.sub(sent, 1, 1) ~= ',' then
    for i = 1, #markers do
      if markers[i] == sent then
        return true, sent, {}
      end
    end
    return false, sent, {}
  end

  local known, own = {}, {}
  for i = 1, #markers do
    add_names(known, names_in(markers[i]))
  end
  if next(known) == nil then
    return false, 'sent' .. sent, {}
  end
  add_names(own, names_in(markers[1]))
  local all, value, present, at = true, {names_in(markers[1]) or ','}, {}, 0
  for name in string.gmatch(sent, '[^,]+') do
    at = at + 1
    present[at] = known[name]
    all = all and known[name]
    if not own[name] then
      value[#value + 1] = name .. ','
    end
  end
  return all, 'sent' .. table.concat(value), present
end

