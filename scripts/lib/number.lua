-- lib/number: read the number at a key.
-- defines  read_number(key): nil if the key is missing; an error if its value is no whole number,
--          or one beyond 64 bits. Near those limits the result is a little less than the value
local function read_number(key)
  local value = redis.call('get', key)
  -- Lua's tonumber also takes 01, 1e5 and inf, with which Redis cannot count.
  if value and value ~= '0' and not (#value < 16 and string.match(value, '^-?[1-9]%d*$')) then
    redis.call('incrby', key, 0) -- fails with Redis's own error, unless it is a large number
    return math.min(tonumber(value), 9223372036854774784) -- 2^63 would be negative in a reply
  end
  return value and tonumber(value)
end
