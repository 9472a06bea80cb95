-- What the markers of an address (a stream, a queue) say of a batch; every script that
-- reads them begins with this.
--
-- A marker is "sent TEMPLATE" when all the events that its group_id has at this
-- address, as that template divides events among addresses, are there. Another
-- template may give this address other events of the group, so what was sent under
-- that one says nothing here: the events are added, for the second time perhaps,
-- but none is missing. A marker is "void" when a later owner divided the group and
-- sends its events under other group_ids.
--
-- Where topic and key are projected anew for every try, the same template may give
-- this address other events the next time. A marker then names those that are here,
-- "sent,1,2,", and proves no other. It names them still when it is "void,1,2,", for
-- the other parts of that group.

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

-- weigh asks what the markers prove, the own one first. sent is "sent TEMPLATE", or
-- the names of the events, ",1,2,". It answers whether all of them are here, what the
-- own marker says when they are, and by position (from 1) which are here already.
local function weigh(markers, sent)
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
  local all, says, here, at = true, {names_in(markers[1]) or ','}, {}, 0
  for name in string.gmatch(sent, '[^,]+') do
    at = at + 1
    here[at] = known[name]
    all = all and known[name]
    if not own[name] then
      says[#says + 1] = name .. ','
    end
  end
  return all, 'sent' .. table.concat(says), here
end

