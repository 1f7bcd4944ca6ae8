-- lib/token: a fenced lock's counter of tokens.
--
-- Redis counts, and the counter is read as text: numbers of Lua are exact up to 2^53 only.
-- defines  reserve_tokens(token_key, n): the last of n new tokens, as text. If fewer than n are
--          left below 2^63, it reserves one. Or nil and an error, if the key holds no number, or
--          if no token is left;
--          last_token(token_key, n): the last token that was reserved, as text. A counter that is
--          gone starts again. Or nil and an error

local function token_error(token_key, problem)
  return redis.error_reply('ERR the counter of fencing tokens ' .. token_key .. ': ' .. problem)
end

local function reserve_tokens(token_key, n)
  local reserved = tonumber(n)
  local last = redis.pcall('incrby', token_key, n)
  if type(last) == 'table' and n ~= '1' then
    reserved = 1
    last = redis.pcall('incrby', token_key, 1)
  end
  if type(last) == 'table' then
    local problem = string.match(last.err, '^ERR (.*)$')
    return nil, problem and token_error(token_key, problem) or last
  elseif last < reserved then
    return nil, token_error(token_key, 'value is below 0')
  end
  return redis.call('get', token_key)
end

local function last_token(token_key, n)
  local last = redis.call('get', token_key)
  if not last then
    return reserve_tokens(token_key, n)
  elseif #last > 19 or not string.match(last, '^[1-9]%d*$') then
    return nil, token_error(token_key, 'value is not an integer or out of range')
  end
  return last
end
