-- lib/count: read how often an owner holds a lock.
-- defines  read_count(value): the count in a lock's field; nil if it is missing, or no whole number
--          of at least 1
local function read_count(value)
  local count = value and #value < 16 and string.match(value, '^%d+$') and tonumber(value)
  return count and count > 0 and count or nil
end
